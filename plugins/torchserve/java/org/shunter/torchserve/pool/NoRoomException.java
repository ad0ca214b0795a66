package org.shunter.torchserve.pool;

import org.pytorch.serve.http.BadRequestException;

/** A change would need more memory than there is; the message says how much. */
public final class NoRoomException extends BadRequestException {
    private static final long serialVersionUID = 1L;

    NoRoomException(final String message) {
        super(message);
    }
}
