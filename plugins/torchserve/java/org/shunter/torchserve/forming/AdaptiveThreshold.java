package org.shunter.torchserve.forming;

/**
 * Finds how many requests come together, from what follows the answers of batches: Shunter's own
 * algorithm, which has only its step from Rafiqi. Twin of the
 * class in {@code batching/forming/threshold.py}, equal bit for bit. Guarded by its dispatcher's lock.
 */
public final class AdaptiveThreshold {
    private static final double SHARE_OF_FIXED_COST = 0.75;
    private static final long SHORTEST_HOLD_NS = 300_000;
    private static final double RETURNING_WEIGHT = 0.125;
    private static final double RETURNING_ENOUGH = 0.75;

    private double alpha = 0.5;
    private double cap = 128.0;
    private double value = Threshold.IDLE;
    /** Share of the requests that come back after their answers. */
    double returning;
    private boolean open;
    private boolean held;
    private long startNs;
    private long endNs;
    private int answers;
    private long answered;
    private long waiting;
    private long before;

    /** How long a worker may be held back after an answer; 0 when it is not worth it. */
    public static long holdNs(final double worthNs, final long maxWaitNs) {
        final long hold = Math.min((long) (SHARE_OF_FIXED_COST * worthNs), maxWaitNs);
        return hold >= SHORTEST_HOLD_NS ? hold : 0;
    }

    public void tune(final double newAlpha, final double newCap) {
        alpha = newAlpha;
        cap = newCap;
    }

    /**
     * A batch was answered.
     *
     * @param size its requests
     * @param waitingNow requests in the queue or sent to its worker ahead
     * @param arrivals all that ever came
     * @param holdNs how long its worker may be held back
     */
    public void answered(
            final long now,
            final int size,
            final long waitingNow,
            final long arrivals,
            final long holdNs) {
        settle(now, arrivals);
        if (!open) {
            open = true;
            held = false;
            startNs = now;
            answers = 0;
            answered = 0;
            waiting = waitingNow;
            before = arrivals;
        }
        answers++;
        answered += size;
        endNs = now + holdNs;
        settle(now, arrivals);
    }

    /** Close the quantum if it is over; before each arrival is counted. */
    public void settle(final long now, final long arrivals) {
        if (!open || now < endNs) {
            return;
        }
        open = false;
        final long came = arrivals - before;
        final double count = (double) (waiting + came) / answers;
        if (endNs > startNs) {
            final double share = Math.min((double) came / answered, 1.0);
            returning += RETURNING_WEIGHT * (share - returning);
        }
        if (held && count < value) {
            returning *= 0.5;
        }
        if (count == 0) {
            returning = 0.0;
            value = Threshold.IDLE;
        } else {
            final double following = Threshold.step(value, count, alpha, cap);
            value = Math.max(following, Math.min(count, value));
        }
    }

    /**
     * Requests for which it is worth to hold so many free workers back now; 1 for none.
     *
     * @param freeSinceNs when the first of them got free
     */
    public double worth(final long now, final int freeWorkers, final long freeSinceNs) {
        final boolean holding = open && startNs <= freeSinceNs && now < endNs;
        return holding && returning >= RETURNING_ENOUGH ? value * freeWorkers : Threshold.IDLE;
    }

    /** When the hold ends; after {@link #worth} said that there is one. */
    public long holdEndNs() {
        return endNs;
    }

    /** A worker is being held back. */
    public void held() {
        held = true;
    }

    public double value() {
        return value;
    }
}
