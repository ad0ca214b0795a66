package org.shunter.torchserve.pool;

import java.util.concurrent.CompletionException;

/**
 * Workers did not load, and why. It has the name of stock's own, which stands in the answer as its
 * type, and is of the one kind that futures hand on as it is.
 */
final class InternalServerException extends CompletionException {
    private static final long serialVersionUID = 1L;

    InternalServerException(final String text) {
        super(text);
    }
}
