package org.shunter.torchserve.queue;

/**
 * Why a request was not taken.
 *
 * @param status HTTP status of its answer
 * @param text what the client is told
 * @param retryAfterS seconds after which it may be taken, or 0 when nothing is known
 */
public record Refusal(int status, String text, long retryAfterS) {
    public static final int FORBIDDEN = 403;
    public static final int TOO_MANY = 429;

    /** The model does not take requests now. */
    public static Refusal unavailable(final String text) {
        return new Refusal(503, text, 0);
    }

    /** The answer would come that much after its deadline. */
    public static Refusal tooLate(final String name, final long answerNs, final long lateNs) {
        final String text =
                String.format(
                        "The deadline cannot be met: an answer of %s is expected in %d ms, %d ms late",
                        name, answerNs / 1_000_000, lateNs / 1_000_000);
        return new Refusal(TOO_MANY, text, 1 + (lateNs - 1) / 1_000_000_000L);
    }
}
