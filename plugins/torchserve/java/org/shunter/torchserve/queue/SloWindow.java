package org.shunter.torchserve.queue;

import org.shunter.torchserve.forming.RequestClass;

/**
 * How many requests with a deadline ended, in the last minute and in all, and how many met it, by
 * class. Read
 * by other threads without a lock: a reader may miss the request that is being counted.
 */
public final class SloWindow {
    /** Length of the window. */
    static final int SECONDS = 60;

    private final long[] second = new long[SECONDS];
    private final int[][] ended = new int[RequestClass.COUNT][SECONDS];
    private final int[][] met = new int[RequestClass.COUNT][SECONDS];
    private final long[] allMet = new long[RequestClass.COUNT];
    private final long[] allMissed = new long[RequestClass.COUNT];

    /** A request ended at that time; called under its dispatcher's lock. */
    void ended(final RequestClass requestClass, final boolean inTime, final long nowNs) {
        final long now = nowNs / 1_000_000_000L;
        final int at = (int) Math.floorMod(now, (long) SECONDS);
        if (second[at] != now) {
            second[at] = now;
            for (int c = 0; c < RequestClass.COUNT; c++) {
                ended[c][at] = 0;
                met[c][at] = 0;
            }
        }
        ended[requestClass.ordinal()][at]++;
        met[requestClass.ordinal()][at] += inTime ? 1 : 0;
        allMet[requestClass.ordinal()] += inTime ? 1 : 0;
        allMissed[requestClass.ordinal()] += inTime ? 0 : 1;
    }

    /** Requests that met their deadline so far. */
    public long met(final RequestClass requestClass) {
        return allMet[requestClass.ordinal()];
    }

    /** Requests that missed it so far. */
    public long missed(final RequestClass requestClass) {
        return allMissed[requestClass.ordinal()];
    }

    /** As the control page has it: 1 + millionths in time, 0 when there were none. */
    public long told(final RequestClass requestClass, final long nowNs) {
        final double share = attainment(requestClass, nowNs);
        return Double.isNaN(share) ? 0 : 1 + Math.round(share * 1e6);
    }

    /** Share of the last minute's requests that met their deadline, NaN when there were none. */
    public double attainment(final RequestClass requestClass, final long nowNs) {
        final long now = nowNs / 1_000_000_000L;
        long all = 0;
        long good = 0;
        for (int at = 0; at < SECONDS; at++) {
            if (now - second[at] < SECONDS) {
                all += ended[requestClass.ordinal()][at];
                good += met[requestClass.ordinal()][at];
            }
        }
        return all == 0 ? Double.NaN : (double) good / all;
    }
}
