package org.shunter.torchserve.forming;

/** When a batch leaves and how it is split. Twin of {@code batching/forming/release.py}. */
public final class ReleaseRule {
    /** No deadline among what waits. */
    public static final long NO_SLACK = Long.MAX_VALUE;

    private ReleaseRule() {}

    /**
     * Whether waiting requests of a class go to its free workers now.
     *
     * @param queued requests waiting
     * @param oldestWaitUs how long the oldest was held back
     * @param slackUs time to the tightest deadline, or {@link #NO_SLACK}
     * @param threshold requests worth a batch
     * @param maxWaitUs longest deliberate wait
     * @param freeCapacity sum of the batch caps of the free workers
     * @param predictedUs predicted latency of the batch
     * @param marginUs how near the deadline may come
     */
    public static boolean shouldRelease(
            final int queued,
            final long oldestWaitUs,
            final long slackUs,
            final double threshold,
            final long maxWaitUs,
            final int freeCapacity,
            final long predictedUs,
            final long marginUs) {
        if (queued <= 0 || freeCapacity <= 0) {
            return false;
        }
        return queued >= Math.min(threshold, freeCapacity)
                || oldestWaitUs >= maxWaitUs
                || slackUs != NO_SLACK && slackUs - predictedUs <= marginUs;
    }

    /**
     * Batch sizes for free workers: in proportion to the caps, largest first, each at most its cap.
     *
     * @param queued requests waiting
     * @param caps batch caps, in any order
     * @return sizes aligned with {@code caps}
     */
    public static int[] split(final int queued, final int[] caps) {
        final int[] sizes = new int[caps.length];
        final boolean[] done = new boolean[caps.length];
        long remainingCaps = 0;
        for (final int cap : caps) {
            remainingCaps += cap;
        }
        long remaining = Math.min(queued, remainingCaps);
        for (int i = 0; i < caps.length && remaining > 0; i++) {
            int largest = -1;
            for (int j = 0; j < caps.length; j++) {
                if (!done[j] && (largest < 0 || caps[j] > caps[largest])) {
                    largest = j;
                }
            }
            done[largest] = true;
            final long cap = caps[largest];
            final long share =
                    cap == 0 ? 0 : (remaining * cap + remainingCaps - 1) / remainingCaps;
            sizes[largest] = (int) Math.min(cap, share);
            remaining -= sizes[largest];
            remainingCaps -= cap;
        }
        return sizes;
    }

    /**
     * Batch sizes for free workers of different speed, so that the last answer comes soonest.
     *
     * @param queued requests waiting
     * @param caps batch caps
     * @param fixedNs fixed part of each worker's batch latency
     * @param perRequestNs part per request
     * @return sizes aligned with {@code caps}
     */
    public static int[] splitByLatency(
            final int queued, final int[] caps, final long[] fixedNs, final long[] perRequestNs) {
        long total = 0;
        long high = 0;
        for (int i = 0; i < caps.length; i++) {
            total += caps[i];
            high = Math.max(high, fixedNs[i] + caps[i] * perRequestNs[i]);
        }
        final long wanted = Math.min(queued, total);
        long low = 0;
        while (low < high) {
            final long middle = (low + high) / 2;
            long sum = 0;
            for (int i = 0; i < caps.length; i++) {
                sum += sizeWithin(middle, caps[i], fixedNs[i], perRequestNs[i]);
            }
            if (sum >= wanted) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        final int[] sizes = new int[caps.length];
        long surplus = -wanted;
        for (int i = 0; i < caps.length; i++) {
            sizes[i] = sizeWithin(low, caps[i], fixedNs[i], perRequestNs[i]);
            surplus += sizes[i];
        }
        for (int i = caps.length - 1; i >= 0; i--) {
            final int less = (int) Math.min(surplus, sizes[i]);
            sizes[i] -= less;
            surplus -= less;
        }
        return sizes;
    }

    private static int sizeWithin(
            final long limitNs, final int cap, final long fixedNs, final long perRequestNs) {
        final long left = limitNs - fixedNs;
        if (left < 0) {
            return 0;
        }
        return perRequestNs > 0 ? (int) Math.min(cap, left / perRequestNs) : cap;
    }

    /**
     * Size of a best-effort batch that does not end together with those of the other workers.
     *
     * @param cap largest batch
     * @param fixedNs fixed part of its latency
     * @param perRequestNs part per request
     * @param busyNs time until each of the others is free
     */
    public static int staggeredSize(
            final int cap, final long fixedNs, final long perRequestNs, final long[] busyNs) {
        final long whole = fixedNs + cap * perRequestNs;
        final long gap = 4 * whole / (5L * (busyNs.length + 1));
        long end = whole;
        for (final long busy : busyNs) {
            if (Math.abs(whole - busy) < gap) {
                end = Math.min(end, busy - gap);
            }
        }
        if (end >= whole || perRequestNs == 0) {
            return cap;
        }
        final long fitting = Math.floorDiv(end - fixedNs, perRequestNs);
        return (int) Math.max((cap + 1) / 2, Math.min(cap, fitting));
    }

    /**
     * Whether a batch may be sent to a worker that still runs one.
     *
     * @param queued requests waiting
     * @param threshold requests worth a batch
     * @param cap batch cap of that worker
     * @param inFlight batches it holds
     * @param aheadLimit batches that may be sent ahead, 0 or 1
     * @param freeWorkers free workers that may take this class
     * @param strict the class of the waiting requests is strict
     * @param runningStrict the worker runs a strict batch
     * @param strictTraffic the model has strict traffic
     */
    public static boolean maySendAhead(
            final int queued,
            final double threshold,
            final int cap,
            final int inFlight,
            final int aheadLimit,
            final int freeWorkers,
            final boolean strict,
            final boolean runningStrict,
            final boolean strictTraffic) {
        return queued > 0
                && freeWorkers == 0
                && inFlight >= 1
                && inFlight <= aheadLimit
                && (strict && runningStrict || !strictTraffic)
                && queued >= Math.min(threshold, cap);
    }

    /**
     * Microseconds until the rule must be asked again if nothing else happens.
     *
     * @return at least 0, or {@link #NO_SLACK} for never
     */
    public static long wakeAfterUs(
            final long oldestWaitUs,
            final long slackUs,
            final long maxWaitUs,
            final long predictedUs,
            final long marginUs) {
        final long byWait = maxWaitUs - oldestWaitUs;
        final long bySlack = slackUs == NO_SLACK ? NO_SLACK : slackUs - predictedUs - marginUs;
        return Math.max(0, Math.min(byWait, bySlack));
    }
}
