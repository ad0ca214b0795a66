package org.shunter.torchserve.preemption;

import org.shunter.torchserve.forming.RequestClass;

/**
 * One model in one process of the pool. Only its dispatcher calls it, under its own lock; the words
 * are guarded by the lock of the room, because the others read them. What the model has there is
 * told anew before and after every decision and not counted up and down, so that no room is lost.
 */
public final class RoomTaker {
    private static final long LONG_AGO_NS = Long.MIN_VALUE / 2;
    private static final int STRICT = RequestClass.STRICT.ordinal();
    private static final int BEST_EFFORT = RequestClass.BEST_EFFORT.ordinal();

    private final PoolRoom room;
    final boolean yields;
    final Runnable decide;
    final long number;
    /** Batches that its workers have, and their predicted times together. */
    int held;

    private long workNs;
    /** When they are predicted to have ended, once the oldest has nothing before it. */
    private long endNs = LONG_AGO_NS;
    /** The worker that this decision may give one more, or null. */
    private Object granted;
    /** The same by class: one decision asks several times. */
    private final Object[] allowed = new Object[RequestClass.COUNT];
    /** Classes that found no room since {@link #begin}. */
    private final boolean[] refused = new boolean[RequestClass.COUNT];

    final boolean[] waiting = new boolean[RequestClass.COUNT];
    final long[] arrivalNs = new long[RequestClass.COUNT];
    /** Number of its last batch among those of all. */
    long served;

    /** When one was given or ended last: one that takes long would be urgent for ever otherwise. */
    long servedNs = LONG_AGO_NS;
    long ageingNs;
    boolean listed;
    /** When nothing was before its oldest batch any more. */
    private volatile long firstSinceNs = LONG_AGO_NS;

    private volatile boolean first = true;

    RoomTaker(
            final PoolRoom room, final boolean yields, final Runnable decide, final long number) {
        this.room = room;
        this.yields = yields;
        this.decide = decide;
        this.number = number;
    }

    int taken() {
        return held + (granted == null ? 0 : 1);
    }

    boolean waits() {
        return waiting[STRICT] || waiting[BEST_EFFORT];
    }

    /** For how many batches it waits; only its own calls change that. */
    public int waitsFor() {
        return waits() ? 1 : 0;
    }

    /**
     * A decision begins; its workers have so many batches, fewer if some were answered or lost.
     *
     * @param work predicted time of these batches
     */
    public void begin(final int batches, final long work, final long nowNs) {
        refused[STRICT] = false;
        refused[BEST_EFFORT] = false;
        if (batches == held) {
            return; // only its own calls change that
        }
        synchronized (room) {
            tell(batches, work, nowNs);
        }
    }

    private void tell(final int batches, final long work, final long nowNs) {
        endNs = batches < held ? nowNs + work : Math.max(endNs, nowNs) + work - workNs;
        workNs = work;
        servedNs = nowNs;
        if (batches < held) {
            room.left(this, nowNs);
        } else {
            served = room.nextGiven();
            if (held == 0) {
                first = !room.othersHold(this);
                firstSinceNs = nowNs;
            }
        }
        held = batches;
    }

    /**
     * Give a worker a batch, unless there is no room or another model is before it; then it waits.
     * As long as a batch of the model is there, it gets no other this way: they would not run beside
     * each other.
     *
     * @param worker who would run it
     * @param oldestNs when the oldest waiting request of the class arrived
     * @param ageing after so long a wait best effort goes as strict requests do, 0: never
     */
    public boolean take(
            final Object worker,
            final RequestClass requestClass,
            final long oldestNs,
            final long ageing,
            final long nowNs) {
        final int c = requestClass.ordinal();
        if (allowed[c] == worker) {
            return true;
        }
        if (held > 0 || granted != null && granted != worker) {
            return false; // it decides again when that is over
        }
        final boolean strictFirst = c == BEST_EFFORT && refused[STRICT];
        synchronized (room) {
            room.asked(this, c, nowNs);
            arrivalNs[c] = oldestNs;
            ageingNs = ageing;
            if (!strictFirst && room.isNext(this, c, nowNs)) {
                granted = worker;
                allowed[c] = worker;
                room.enlist(this);
                return true;
            }
        }
        refused[c] = true;
        return false;
    }

    /** Give a worker a batch behind the one that it has, if nobody else would use the room. */
    public boolean takeAhead(final Object worker) {
        if (granted != null) {
            return granted == worker;
        }
        synchronized (room) {
            if (held < PoolRoom.DEPTH && room.isAlone(this)) {
                granted = worker;
                room.enlist(this);
            }
        }
        return granted == worker;
    }

    /**
     * An event is over, and its workers have so many batches. Who is next is called if there is
     * room; that may be this one again.
     *
     * @param work predicted time of these batches
     * @param strictWaits whether strict requests wait that a worker could begin with
     * @param bestEffortWaits the same of the others
     */
    public void settle(
            final int batches,
            final long work,
            final boolean strictWaits,
            final boolean bestEffortWaits,
            final long nowNs,
            final Turns.Later later) {
        synchronized (room) {
            granted = null;
            allowed[STRICT] = null;
            allowed[BEST_EFFORT] = null;
            if (batches != held) {
                tell(batches, work, nowNs);
            }
            waiting[STRICT] = strictWaits && refused[STRICT];
            waiting[BEST_EFFORT] = bestEffortWaits && refused[BEST_EFFORT];
            if (held > 0 || waits()) {
                room.enlist(this);
            } else if (listed) {
                room.leave(this);
            }
            room.callNext(nowNs, later);
        }
    }

    /** Predicted time until a batch of a class would have nothing before it. */
    public long waitNs(final RequestClass requestClass, final long nowNs) {
        synchronized (room) {
            return room.waitNs(this, requestClass.ordinal(), nowNs);
        }
    }

    /** Predicted time that its batches take yet. */
    long leftNs(final long nowNs) {
        if (held == 0) {
            return 0;
        }
        return first ? Math.max(0, endNs - nowNs) : workNs;
    }

    /** When another model last asked for room for a class, or for one that goes before it. */
    public long othersAskedNs(final RequestClass requestClass) {
        synchronized (room) {
            return room.othersAskedNs(this, requestClass.ordinal());
        }
    }

    /** One of its batches was answered. */
    public void answered(final long nowNs) {
        synchronized (room) {
            room.answered(this, nowNs);
        }
    }

    /** What was before its batch is over. */
    void becomeFirst(final long nowNs) {
        if (!first) {
            firstSinceNs = nowNs;
            endNs = nowNs + workNs;
            first = true;
        }
    }

    /** Whether its oldest batch has nothing before it; when that is so, since when. */
    public boolean isFirst() {
        return first;
    }

    public long firstSinceNs() {
        return firstSinceNs;
    }
}
