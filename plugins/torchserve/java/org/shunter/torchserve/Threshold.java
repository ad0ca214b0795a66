package org.shunter.torchserve;

/** The adaptive batching threshold. Twin of {@code batching/threshold.py}, equal bit for bit. */
final class Threshold {
    private Threshold() {}

    /**
     * One step after a batch was answered (Rafiqi, section 3.2).
     *
     * @param threshold the value before, at least 1
     * @param arrived requests that arrived during the batch's service time
     * @param alpha weight of the old value on increase, 0 to 1
     * @param cap upper bound, at least 1
     */
    static double step(
            final double threshold, final double arrived, final double alpha, final double cap) {
        final double next =
                arrived > threshold
                        ? alpha * threshold + (1.0 - alpha) * arrived
                        : Math.max(arrived, threshold / 2.0);
        return Math.min(Math.max(next, 1.0), cap);
    }
}
