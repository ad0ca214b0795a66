package org.shunter.torchserve;

/** When a batch leaves and how it is split. Twin of {@code batching/release.py}. */
final class ReleaseRule {
    /** No deadline among what waits. */
    static final long NO_SLACK = Long.MAX_VALUE;

    private ReleaseRule() {}

    /**
     * Whether waiting requests of a class go to its free workers now.
     *
     * @param queued requests waiting
     * @param oldestWaitUs wait of the oldest
     * @param slackUs time to the tightest deadline, or {@link #NO_SLACK}
     * @param threshold requests worth a batch
     * @param maxWaitUs longest deliberate wait
     * @param freeCapacity sum of the batch caps of the free workers
     * @param predictedUs predicted latency of the batch
     * @param marginUs how near the deadline may come
     */
    static boolean shouldRelease(
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
    static int[] split(final int queued, final int[] caps) {
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
    static boolean maySendAhead(
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
    static long wakeAfterUs(
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
