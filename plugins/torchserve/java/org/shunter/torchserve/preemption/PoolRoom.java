package org.shunter.torchserve.preemption;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.shunter.torchserve.forming.RequestClass;

/**
 * The room for batches in one process of the pool, over all models that it serves. One batch runs
 * and the weights of the next come meanwhile; what is behind these waits in the queues of its
 * models, where it can still grow, expire, and be passed. Every model has a {@link RoomTaker} in it.
 * A strict batch does not wait for room behind those that stand still for it.
 *
 * <p>Room goes to strict requests first, then to the model that was served longest ago. A model
 * whose best effort waits, and was not served, for its ageing time is counted among the strict ones.
 *
 * <p>Nobody polls: whenever there is room after an event of a model, those that are next are called.
 */
public final class PoolRoom {
    /**
     * Batches that the process has at once. Strict ones pass those that stand still for them: of them
     * there are so many beside these.
     */
    public static final int DEPTH = 2;

    private static final long LONG_AGO_NS = Long.MIN_VALUE / 2;

    /** Which process of this server's pool it is. */
    public final int number;

    /** Those that have batches there, or wait. */
    private final List<RoomTaker> active = new ArrayList<>();

    private long takers;
    private long given;
    /** By class: who asked for room last, when, and when the last of all others did. */
    private final long[] lastAsking = new long[RequestClass.COUNT];

    private final long[] askedNs = new long[RequestClass.COUNT];
    private final long[] othersAskedNs = new long[RequestClass.COUNT];
    /** When a batch was last answered there. */
    private volatile long endedNs = LONG_AGO_NS;

    public PoolRoom(final int number) {
        this.number = number;
        Arrays.fill(lastAsking, -1);
        Arrays.fill(askedNs, LONG_AGO_NS);
        Arrays.fill(othersAskedNs, LONG_AGO_NS);
    }

    /**
     * A model that has no batch there yet; {@code decide} is called, without any lock, for room.
     *
     * @param yields whether its batches stand still while strict ones of other models run
     */
    public synchronized RoomTaker join(final boolean yields, final Runnable decide) {
        return new RoomTaker(this, yields, decide, takers++);
    }

    /** When a batch was last answered there: what is there now began after that. */
    public long endedNs() {
        return endedNs;
    }

    /** A number that is larger than all before. */
    long nextGiven() {
        return ++given;
    }

    void asked(final RoomTaker taker, final int c, final long nowNs) {
        if (lastAsking[c] != taker.number) {
            lastAsking[c] = taker.number;
            othersAskedNs[c] = askedNs[c];
        }
        askedNs[c] = nowNs;
    }

    /** When another model last asked for room for a class, or for one that goes before it. */
    long othersAskedNs(final RoomTaker taker, final int c) {
        long lastNs = LONG_AGO_NS;
        for (int each = 0; each <= c; each++) {
            final boolean own = lastAsking[each] == taker.number;
            lastNs = Math.max(lastNs, own ? othersAskedNs[each] : askedNs[each]);
        }
        return lastNs;
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

    /** Room beside what the other models have there; without one: beside what all have. */
    private int spare(final RoomTaker taker) {
        int spare = DEPTH;
        for (final RoomTaker other : active) {
            spare -= other == taker ? 0 : other.taken();
        }
        return spare;
    }

    /** The same for a batch that passes: what stands still for it takes none of it. */
    private int passingRoom(final RoomTaker taker) {
        int free = DEPTH;
        for (final RoomTaker other : active) {
            free -= other == taker || other.yields ? 0 : other.taken();
        }
        return free;
    }

    /** Predicted time of what goes before a batch. */
    long waitNs(final RoomTaker taker, final int c, final long nowNs) {
        final boolean passes = passes(taker, c);
        long waitNs = 0;
        for (final RoomTaker other : active) {
            waitNs += other == taker || passes && other.yields ? 0 : other.leftNs(nowNs);
        }
        return waitNs;
    }

    /** Whether a batch runs where those of best effort stand still. */
    private static boolean passes(final RoomTaker taker, final int c) {
        return c == RequestClass.STRICT.ordinal() && !taker.yields;
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
    boolean isNext(final RoomTaker taker, final int c, final long nowNs) {
        final int spare = spare(taker);
        final boolean passes = passes(taker, c);
        int before = 0;
        for (final RoomTaker other : active) {
            if (other != taker
                    && other.waits()
                    && (spare > 0 || passes(other, classOf(other))) // else there is none for it
                    && precedes(other, classOf(other), taker, c, nowNs)) {
                before++;
            }
        }
        return before < (passes ? passingRoom(taker) : spare);
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
        final int spare = spare(null);
        final int room = passingRoom(null);
        RoomTaker next = null;
        for (int before = 0; before < room; before++) {
            next = firstAfter(next, spare <= 0, nowNs);
            if (next == null) {
                return;
            }
            if (before < spare || passes(next, classOf(next))) {
                later.later(next.decide);
            }
        }
    }

    /** The next of those that wait, or of those that pass, after one of them or as the first; or null. */
    private RoomTaker firstAfter(final RoomTaker before, final boolean passing, final long nowNs) {
        RoomTaker first = null;
        for (final RoomTaker taker : active) {
            if (taker.waits()
                    && taker != before
                    && (!passing || passes(taker, classOf(taker)))
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

    /** A batch is there no more: if it was the first one, another one is that now. */
    void left(final RoomTaker taker, final long nowNs) {
        RoomTaker next = null;
        for (final RoomTaker other : active) {
            if (other != taker && other.held > 0) {
                if (other.isFirst()) {
                    return; // it runs, or stands still
                }
                next = next == null || isGivenBefore(other, next) ? other : next;
            }
        }
        if (next != null) {
            next.becomeFirst(nowNs);
        }
    }

    private static boolean isGivenBefore(final RoomTaker a, final RoomTaker b) {
        return a.yields == b.yields ? a.served < b.served : b.yields;
    }
}
