package org.shunter.torchserve.forming;

/** The adaptive batching threshold. Twin of {@code batching/forming/threshold.py}, equal bit for bit. */
public final class Threshold {
    private Threshold() {}

    /** The value at start, and when nobody comes back after an answer. */
    public static final double IDLE = 1.0;

    /**
     * One step after a batch was answered (Rafiqi, section 3.3).
     *
     * @param threshold the value before, at least 1
     * @param arrived requests that arrived during the quantum, per worker
     * @param alpha weight of the old value on increase, in [0, 1)
     * @param cap upper bound, at least 1
     */
    static double step(
            final double threshold, final double arrived, final double alpha, final double cap) {
        double next = threshold;
        if (arrived > threshold) {
            next = alpha * threshold + (1.0 - alpha) * arrived;
        } else if (arrived < threshold) {
            next = threshold / 2.0;
        }
        return Math.min(Math.max(next, IDLE), cap);
    }
}
