package org.shunter.torchserve.queue;

import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;

/** One pending timer of a dispatcher: asked for many times, set only when it must ring earlier. */
public final class Wakeup {
    /** Runs something later; a {@link java.util.concurrent.ScheduledExecutorService} is one. */
    public interface Timer {
        Future<?> schedule(Runnable task, long delay, TimeUnit unit);
    }

    private final Timer timer;
    private final Runnable action;
    private Future<?> pending;
    private long pendingNs = Entry.NEVER;

    public Wakeup(final Timer timer, final Runnable action) {
        this.timer = timer;
        this.action = action;
    }

    /** Ring at that time at the latest; {@link Entry#NEVER} changes nothing. */
    public synchronized void at(final long wakeNs, final long nowNs) {
        if (wakeNs >= pendingNs) {
            return;
        }
        if (pending != null) {
            pending.cancel(false);
        }
        pendingNs = wakeNs;
        pending = timer.schedule(this::ring, Math.max(0, wakeNs - nowNs), TimeUnit.NANOSECONDS);
    }

    /** Forget it: a timer for a far deadline would keep a dispatcher that nobody uses any more. */
    public synchronized void cancel() {
        if (pending != null) {
            pending.cancel(false);
        }
        pending = null;
        pendingNs = Entry.NEVER;
    }

    private void ring() {
        synchronized (this) {
            pending = null;
            pendingNs = Entry.NEVER;
        }
        action.run();
    }
}
