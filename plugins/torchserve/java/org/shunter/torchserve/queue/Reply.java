package org.shunter.torchserve.queue;

import java.util.List;
import java.util.Map;

/**
 * A worker's message: the answer to a load or a batch, or one part of a streamed answer.
 *
 * @param code HTTP status of the whole batch
 * @param message text that goes with a status other than 200; with 200, lines of metrics after the
 *     first
 * @param predictions one per request of the batch; empty for a load
 */
public record Reply(int code, String message, List<Prediction> predictions) {
    /** The answer to one request. */
    public record Prediction(
            String requestId,
            String contentType,
            int status,
            String phrase,
            Map<String, String> headers,
            byte[] body) {}
}
