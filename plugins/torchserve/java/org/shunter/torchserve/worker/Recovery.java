package org.shunter.torchserve.worker;

import java.util.concurrent.Future;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;

/**
 * For how long a worker has failed, and when it is tried again. Times are those of {@link
 * System#nanoTime}: a wall clock that is set must give no worker up, and keep none.
 */
final class Recovery {
    private static final int[] BACK_OFF_S = {
        0, 1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610, 987, 1597
    };

    /** Since when it fails; null while it works. */
    private volatile Long sinceNs;
    private int backOff = -1;
    private boolean ended;
    private Future<?> next;

    /** It failed; true when it had worked before. */
    boolean failed(final long nowNs) {
        final boolean first = sinceNs == null;
        if (first) {
            sinceNs = nowNs;
        }
        return first;
    }

    /** It works; true when it had failed before. */
    synchronized boolean worked() {
        final boolean recovered = sinceNs != null;
        sinceNs = null;
        backOff = -1;
        return recovered;
    }

    /** Whether it works, or has not failed for that long yet. */
    boolean isWithin(final long mostMs, final long nowNs) {
        final Long since = sinceNs;
        return since == null || nowNs - since < TimeUnit.MILLISECONDS.toNanos(mostMs);
    }

    /** Try again after so many seconds as are returned: more at each time. */
    synchronized int tryAgain(final ScheduledExecutorService timer, final Runnable restart) {
        backOff = Math.min(backOff + 1, BACK_OFF_S.length - 1);
        if (!ended) {
            next = timer.schedule(restart, BACK_OFF_S[backOff], TimeUnit.SECONDS);
        }
        return BACK_OFF_S[backOff];
    }

    /** There is no next time: a timer would keep the worker for as long as it backs off. */
    synchronized void end() {
        ended = true;
        if (next != null) {
            next.cancel(false);
        }
    }
}
