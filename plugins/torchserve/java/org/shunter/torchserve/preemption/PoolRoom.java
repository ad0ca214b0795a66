package org.shunter.torchserve.preemption;

import java.util.ArrayList;
import java.util.List;
import org.shunter.torchserve.forming.RequestClass;

/**
 * The room for batches in one process of the pool, over all models that it serves. One batch runs
 * and the weights of the next come meanwhile; what is behind these waits in the queues of its
 * models, where it can still grow, expire, and be passed. Every model has a {@link RoomTaker} in it.
 *
 * <p>Room goes to strict requests first, then to the model that was served longest ago. A model
 * whose best effort waits, and was not served, for its ageing time is counted among the strict ones.
 *
 * <p>Nobody polls: whenever there is room after an event of a model, those that are next are called.
 */
public final class PoolRoom {
    /** Batches that the process has at once. */
    public static final int DEPTH = 2;

    private static final long LONG_AGO_NS = Long.MIN_VALUE / 2;

    /** Which process of this server's pool it is. */
    public final int number;

    /** Those that have batches there, or wait. */
    private final List<RoomTaker> active = new ArrayList<>();

    private long takers;
    private long given;
    /** When a batch was last answered there. */
    private volatile long endedNs = LONG_AGO_NS;

    public PoolRoom(final int number) {
        this.number = number;
    }

    /** A model that has no batch there yet; {@code decide} is called, without any lock, for room. */
    public synchronized RoomTaker join(final Runnable decide) {
        return new RoomTaker(this, decide, takers++);
    }

    /** When a batch was last answered there: what is there now began after that. */
    public long endedNs() {
        return endedNs;
    }

    /** A number that is larger than all before. */
    long nextGiven() {
        return ++given;
    }

    void enlist(final RoomTaker taker) {
        if (!taker.listed) {
            taker.listed = true;
            active.add(taker);
        }
    }

    void leave(final RoomTaker taker) {
        taker.listed = false;
        active.remove(taker);
    }

    /** Whether no other model has a batch there, or waits. */
    boolean isAlone(final RoomTaker taker) {
        for (final RoomTaker other : active) {
            if (other != taker) {
                return false;
            }
        }
        return true;
    }

    /** Batches for which there is room beside those of the other models; without one: of all. */
    int freeFor(final RoomTaker taker) {
        int free = DEPTH;
        for (final RoomTaker other : active) {
            free -= other == taker ? 0 : other.taken();
        }
        return free;
    }

    /** Whether another model has a batch there. */
    boolean othersHold(final RoomTaker taker) {
        for (final RoomTaker other : active) {
            if (other != taker && other.held > 0) {
                return true;
            }
        }
        return false;
    }

    /** Whether a model would get room for a batch of a class: so few go before it. */
    boolean isNext(final RoomTaker taker, final int c, final int free, final long nowNs) {
        int before = 0;
        for (final RoomTaker other : active) {
            if (other != taker && other.waits() && precedes(other, classOf(other), taker, c, nowNs)) {
                before++;
            }
        }
        return before < free;
    }

    private static boolean precedes(final RoomTaker a, final RoomTaker b, final long nowNs) {
        return precedes(a, classOf(a), b, classOf(b), nowNs);
    }

    /** The class that a waiting model would be given room for. */
    private static int classOf(final RoomTaker taker) {
        final int strict = RequestClass.STRICT.ordinal();
        return taker.waiting[strict] ? strict : RequestClass.BEST_EFFORT.ordinal();
    }

    private static boolean precedes(
            final RoomTaker a, final int classOfA, final RoomTaker b, final int classOfB, final long nowNs) {
        final boolean urgentA = isUrgent(a, classOfA, nowNs);
        if (urgentA != isUrgent(b, classOfB, nowNs)) {
            return urgentA;
        }
        int order = Long.compare(a.served, b.served);
        order = order == 0 ? Long.compare(a.arrivalNs[classOfA], b.arrivalNs[classOfB]) : order;
        return order == 0 ? a.number < b.number : order < 0;
    }

    private static boolean isUrgent(final RoomTaker taker, final int c, final long nowNs) {
        return c == RequestClass.STRICT.ordinal()
                || taker.ageingNs > 0
                        && nowNs - Math.max(taker.arrivalNs[c], taker.servedNs) >= taker.ageingNs;
    }

    /** Call as many as there is room for; who is called takes it, or does not wait any more. */
    void callNext(final long nowNs, final Turns.Later later) {
        RoomTaker called = null;
        for (int free = freeFor(null); free > 0; free--) {
            called = firstAfter(called, nowNs);
            if (called == null) {
                return;
            }
            later.later(called.decide);
        }
    }

    /** The next of those that wait, after one of them or as the first; or null. */
    private RoomTaker firstAfter(final RoomTaker before, final long nowNs) {
        RoomTaker first = null;
        for (final RoomTaker taker : active) {
            if (taker.waits()
                    && taker != before
                    && (before == null || precedes(before, taker, nowNs))
                    && (first == null || precedes(taker, first, nowNs))) {
                first = taker;
            }
        }
        return first;
    }

    void answered(final RoomTaker taker, final long nowNs) {
        endedNs = Math.max(endedNs, nowNs);
        left(taker, nowNs);
    }

    /** A batch is there no more: what the others have there is what runs. */
    void left(final RoomTaker taker, final long nowNs) {
        for (final RoomTaker other : active) {
            if (other != taker) {
                other.becomeFirst(nowNs);
            }
        }
    }
}
