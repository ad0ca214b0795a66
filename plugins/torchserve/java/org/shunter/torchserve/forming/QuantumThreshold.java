package org.shunter.torchserve.forming;

/**
 * Rafiqi's threshold with its fixed quantum, for comparison. Twin of the class in {@code
 * batching/forming/threshold.py}. Guarded by its dispatcher's lock.
 */
public final class QuantumThreshold {
    private double value = Threshold.IDLE;
    private boolean started;
    private long endNs;
    private long before;

    /** Take the steps of all quanta that are over; before each arrival is counted. */
    public void settle(
            final long now,
            final long arrivals,
            final long quantumNs,
            final double alpha,
            final double cap) {
        if (!started) {
            started = true;
            endNs = now + quantumNs;
            before = arrivals;
        }
        long count = arrivals - before;
        while (now >= endNs) {
            value = Threshold.step(value, count, alpha, cap);
            endNs += quantumNs;
            before = arrivals;
            count = 0;
            if (value == Threshold.IDLE && now >= endNs) {
                endNs = now + quantumNs;
            }
        }
    }

    public double value() {
        return value;
    }
}
