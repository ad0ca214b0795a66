package org.shunter.torchserve.forming;

/** Which requests a batch can still serve in time. Twin of parts of {@code batching/forming/release.py}. */
public final class Deadlines {
    private Deadlines() {}

    /**
     * The cut of the most urgent requests.
     *
     * @param skip how many of them to give up
     * @param take how many to run now
     */
    public record Cut(int skip, int take) {}

    /**
     * How many of the most urgent requests to give up, and how many to run now.
     *
     * @param slacksNs times left to the deadlines of the first waiting requests, ascending
     * @param waiting requests waiting
     * @param size batch size without deadlines
     * @param cap largest batch
     * @param fixedNs fixed part of a batch's latency
     * @param perRequestNs part per request
     * @param nextFreeNs time until another worker is free; 0: one is, and nothing is given up
     */
    public static Cut fit(
            final long[] slacksNs,
            final int waiting,
            final int size,
            final int cap,
            final long fixedNs,
            final long perRequestNs,
            final long nextFreeNs) {
        if (slacksNs[0] >= fixedNs + size * perRequestNs) {
            return new Cut(0, size);
        }
        final boolean hopeless = slacksNs[0] < fixedNs + perRequestNs;
        if (nextFreeNs == 0 && hopeless) {
            return new Cut(0, size);
        }
        final long fitting =
                perRequestNs > 0 ? Math.floorDiv(slacksNs[0] - fixedNs, perRequestNs) : 1;
        final int take = (int) Math.max(1, Math.min(size, fitting));
        final int rest = waiting - take;
        if (nextFreeNs == 0 || rest <= 0 || take >= slacksNs.length) {
            return new Cut(0, take);
        }
        final long restStartsNs = Math.min(fixedNs + take * perRequestNs, nextFreeNs);
        if (!hopeless
                && slacksNs[take]
                        >= restStartsNs + fixedNs + Math.min(rest, cap) * perRequestNs) {
            return new Cut(0, take);
        }
        for (int skip = 1; skip < slacksNs.length; skip++) {
            final int left = Math.min(cap, waiting - skip);
            if (slacksNs[skip] >= fixedNs + left * perRequestNs) {
                return hopeless || left > take ? new Cut(skip, left) : new Cut(0, take);
            }
        }
        return new Cut(0, take);
    }

    /** Whether a request cannot be answered in time any more, if that takes so long at least. */
    public static boolean isTooLate(final long nowNs, final long deadlineNs, final long soonestNs) {
        return deadlineNs < nowNs + soonestNs;
    }

    /** When to ask that again, if nothing else happens and a request takes so long at least. */
    public static long tooLateAtNs(final long nowNs, final long deadlineNs, final long leastNs) {
        final long hopelessNs = deadlineNs - leastNs;
        return hopelessNs > nowNs ? hopelessNs : deadlineNs;
    }

    /** Predicted wait behind so many requests. */
    public static long predictedWaitNs(
            final long ahead, final long capacity, final long batchNs, final long busyNs) {
        return busyNs + ahead / capacity * batchNs;
    }
}
