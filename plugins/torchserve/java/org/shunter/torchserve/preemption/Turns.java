package org.shunter.torchserve.preemption;

import static org.shunter.torchserve.page.ControlLayout.*;

import java.util.ArrayList;
import java.util.List;
import java.util.function.ToIntFunction;
import org.shunter.torchserve.forming.RequestClass;
import org.shunter.torchserve.page.ControlPage;
import org.shunter.torchserve.page.SliceSet;
import org.shunter.torchserve.placement.Slices;

/**
 * Whose turn it is, where one model at a time runs on slices that several share: in the order that
 * the control page asks for, by class or over both. Every model has a {@link TurnTaker} in it. The
 * workers of one model may run beside each other, and best effort of as many models as there are
 * CPUs for the threads of.
 *
 * <p>Nobody polls: who ends what stood in another's way calls it, and it decides again. What runs
 * and what waits is told anew after every event of a model, so that no turn can be forgotten.
 */
public final class Turns {
    /**
     * How turns are taken now.
     *
     * @param strict order of strict batches, one of ORDER_...
     * @param bestEffort order of best-effort batches
     * @param exclusive whether batches of both classes take turns with each other, strict first
     */
    public record Rules(int strict, int bestEffort, boolean exclusive) {
        /** Order of the batches of a class. */
        int order(final RequestClass requestClass) {
            final int own = requestClass == RequestClass.STRICT ? strict : bestEffort;
            return exclusive && own == ORDER_CONCURRENT ? ORDER_FIFO : own;
        }

        /** Whether batches of a class take turns on workers that stand still for strict work, or not. */
        public boolean apply(final RequestClass requestClass, final boolean yields) {
            return exclusive
                    || order(requestClass) != ORDER_CONCURRENT
                            && (requestClass == RequestClass.STRICT || yields);
        }

        public boolean apply() {
            return exclusive || strict != ORDER_CONCURRENT || bestEffort != ORDER_CONCURRENT;
        }

        private boolean conflict(final int a, final int b) {
            return exclusive || a == b;
        }

        /** Whether batches of a class that fit on the CPUs beside each other run together. */
        private boolean share(final int c) {
            return !exclusive && c == RequestClass.BEST_EFFORT.ordinal();
        }
    }

    private static final long LONG_AGO_NS = Long.MIN_VALUE / 2;

    private final ControlPage page;
    private final ToIntFunction<SliceSet> cpus;
    /** Those that run or wait. */
    private final List<TurnTaker> active = new ArrayList<>();

    /** Where to put what is called once no lock is held. */
    public interface Later {
        void later(Runnable action);
    }

    private volatile Rules rules = new Rules(ORDER_CONCURRENT, ORDER_CONCURRENT, false);
    private Rules obeyed = rules;
    private long takers;

    public Turns(final ControlPage page) {
        this(page, Slices::cpus);
    }

    /** {@code cpus}: how many CPUs there are among some slices. */
    public Turns(final ControlPage page, final ToIntFunction<SliceSet> cpus) {
        this.page = page;
        this.cpus = cpus;
    }

    /** What the page says now. */
    public Rules rules() {
        final int strict = order(page.get(H_STRICT_ORDER));
        final int bestEffort = order(page.get(H_BEST_EFFORT_ORDER));
        final boolean exclusive = page.get(H_EXCLUSIVE) == 1;
        final Rules before = rules;
        if (before.strict == strict
                && before.bestEffort == bestEffort
                && before.exclusive == exclusive) {
            return before;
        }
        final Rules now = new Rules(strict, bestEffort, exclusive);
        rules = now;
        return now;
    }

    private static int order(final long word) {
        return word >= ORDER_CONCURRENT && word <= ORDER_ROUND_ROBIN ? (int) word : ORDER_CONCURRENT;
    }

    /** When the page says something else than at the last call, who waits decides by that. */
    public synchronized void obey(final Later later) {
        final Rules now = rules();
        if (!now.equals(obeyed)) {
            obeyed = now;
            active.forEach(taker -> later.later(taker.decide));
        }
    }

    /** A model that runs nothing yet; {@code decide} is called, without any lock, when it may go. */
    public synchronized TurnTaker join(final Runnable decide) {
        return new TurnTaker(decide, takers++);
    }

    /**
     * One model. Only its dispatcher calls it, under its own lock; the words are guarded by the lock
     * of the turns, because the others read them.
     */
    public final class TurnTaker {
        private final Runnable decide;
        private final long number;
        private final SliceSet[] running = none();
        /** CPUs that its running batches use, and that the next one would use more. */
        private final int[] width = new int[RequestClass.COUNT];

        private final int[] more = new int[RequestClass.COUNT];
        /** Most CPUs that best effort has used since the last {@link #settle}. */
        private int widest;
        /** Workers that may start since {@link #begin}, by class: one decision asks several times. */
        private final List<List<Object>> allowed = List.of(new ArrayList<>(), new ArrayList<>());
        private final SliceSet[] waiting = none();
        /** What it could not start since {@link #begin}. */
        private final SliceSet[] refused = none();
        /** What stood in others' way at any time since the last {@link #settle}. */
        private final SliceSet[] ran = none();
        private final SliceSet[] waited = none();
        private final long[] arrivalNs = new long[RequestClass.COUNT];
        private final long[] deadlineNs = new long[RequestClass.COUNT];
        private final long[] lastTurnNs = {LONG_AGO_NS, LONG_AGO_NS};
        private final List<TurnTaker> ahead = new ArrayList<>(2);
        private long ageingNs;
        private boolean listed;

        private TurnTaker(final Runnable decide, final long number) {
            this.decide = decide;
            this.number = number;
        }

        /** Whether it runs or waits; only its own calls change that. */
        public boolean isActive() {
            return listed;
        }

        /**
         * A decision begins, and this is what runs by class.
         *
         * @param used CPUs that best-effort batches use
         */
        public void begin(final SliceSet strict, final SliceSet bestEffort, final int used) {
            allowed.forEach(List::clear);
            if (strict.isEmpty() && bestEffort.isEmpty() && !listed) {
                refused[0] = SliceSet.NONE;
                refused[1] = SliceSet.NONE;
                return; // it has nothing to do with turns, and takes no lock for them
            }
            synchronized (Turns.this) {
                running[0] = strict;
                running[1] = bestEffort;
                width[1] = used;
                widest = Math.max(widest, used);
                ran[0] = ran[0].or(strict);
                ran[1] = ran[1].or(bestEffort);
                if (!(strict.isEmpty() && bestEffort.isEmpty())) {
                    enlist(this);
                }
                refused[0] = SliceSet.NONE;
                refused[1] = SliceSet.NONE;
            }
        }

        /** Whether strict requests wait for their turn on some of these slices, by this decision. */
        public boolean strictWaits(final SliceSet slices) {
            return refused[RequestClass.STRICT.ordinal()].overlaps(slices);
        }

        /**
         * Start a batch on these slices, unless another batch or another model is before it; then it
         * waits. Who may start once may do so until the next {@link #begin}.
         *
         * @param worker who would run it
         * @param wanted CPUs that the batch would use
         * @param oldestNs when the oldest waiting request of the class arrived
         * @param tightestNs earliest deadline among them
         * @param ageing after so long a wait it goes before the others in turn, 0: never
         */
        public boolean take(
                final Object worker,
                final RequestClass requestClass,
                final SliceSet slices,
                final int wanted,
                final long oldestNs,
                final long tightestNs,
                final long ageing,
                final long nowNs) {
            synchronized (Turns.this) {
                final Rules now = rules;
                final int c = requestClass.ordinal();
                arrivalNs[c] = oldestNs;
                deadlineNs[c] = tightestNs;
                ageingNs = ageing;
                more[c] = wanted;
                if (allowed.get(c).contains(worker)) {
                    return true; // it is counted already
                }
                if (now.exclusive && running[1 - c].overlaps(slices)) {
                    if (requestClass == RequestClass.STRICT) {
                        refused[c] = refused[c].or(slices); // no more best effort goes before it
                    }
                    return false; // it decides again when that ends, without being called
                }
                if (mayStart(this, c, slices, nowNs)) {
                    running[c] = running[c].or(slices);
                    width[c] += wanted;
                    widest = Math.max(widest, width[1]);
                    ran[c] = ran[c].or(slices);
                    allowed.get(c).add(worker);
                    enlist(this);
                    return true;
                }
                refused[c] = refused[c].or(slices);
                waiting[c] = waiting[c].or(slices);
                waited[c] = waited[c].or(slices);
                enlist(this);
                return false;
            }
        }

        /**
         * An event is over, and this is what runs by class. Who waited for what does not run or wait
         * any more is called.
         *
         * @param used CPUs that best-effort batches use
         * @param strictWaits whether strict requests wait, and a worker could begin with them
         * @param bestEffortWaits the same of the others
         */
        public void settle(
                final SliceSet strict,
                final SliceSet bestEffort,
                final int used,
                final boolean strictWaits,
                final boolean bestEffortWaits,
                final long nowNs,
                final Later later) {
            allowed.forEach(List::clear);
            if (strict.isEmpty() && bestEffort.isEmpty() && !listed) {
                return;
            }
            synchronized (Turns.this) {
                set(0, strict, strictWaits, nowNs);
                set(1, bestEffort, bestEffortWaits, nowNs);
                width[1] = used;
                for (final TurnTaker taker : ahead) {
                    later.later(taker.decide);
                }
                ahead.clear();
                callNext(this, nowNs, later);
                for (int c = 0; c < RequestClass.COUNT; c++) {
                    ran[c] = running[c];
                    waited[c] = waiting[c];
                }
                widest = used;
                if (running[0].isEmpty()
                        && running[1].isEmpty()
                        && waiting[0].isEmpty()
                        && waiting[1].isEmpty()) {
                    listed = false;
                    active.remove(this);
                }
            }
        }

        private void set(final int c, final SliceSet runs, final boolean waits, final long nowNs) {
            running[c] = runs;
            ran[c] = ran[c].or(runs);
            waiting[c] = waits ? refused[c] : SliceSet.NONE;
            lastTurnNs[c] = runs.isEmpty() ? lastTurnNs[c] : nowNs;
            if (!runs.isEmpty()) {
                enlist(this);
            }
        }

        /** What stood in the others' way and does not any more. */
        private SliceSet freed(final int c) {
            final boolean shares = rules.share(c);
            final SliceSet ended =
                    shares && width[c] < widest ? ran[c] : ran[c].andNot(running[c]);
            final SliceSet stillThere = shares ? waiting[c] : waiting[c].or(running[c]);
            return ended.or(waited[c].andNot(stillThere));
        }
    }

    private static SliceSet[] none() {
        return new SliceSet[] {SliceSet.NONE, SliceSet.NONE};
    }

    private void enlist(final TurnTaker taker) {
        if (!taker.listed) {
            taker.listed = true;
            active.add(taker);
        }
    }

    private static boolean runs(
            final TurnTaker taker, final int c, final SliceSet slices, final Rules now) {
        for (int other = 0; other < RequestClass.COUNT; other++) {
            if (now.conflict(c, other) && taker.running[other].overlaps(slices)) {
                return true;
            }
        }
        return false;
    }

    /** Whether what others run leaves no room for the next batch of a taker. */
    private boolean othersRun(final TurnTaker taker, final int c, final SliceSet slices) {
        final Rules now = rules;
        int used = 0;
        for (final TurnTaker other : active) {
            if (other != taker && runs(other, c, slices, now)) {
                if (!now.share(c)) {
                    return true;
                }
                used += other.width[c];
            }
        }
        return used > 0 && used + taker.width[c] + taker.more[c] > cpus.applyAsInt(slices);
    }

    private boolean mayStart(final TurnTaker asking, final int c, final SliceSet slices, final long nowNs) {
        if (othersRun(asking, c, slices)) {
            return false;
        }
        boolean first = true;
        for (final TurnTaker other : active) {
            if (other != asking && isBefore(other, asking, c, slices, nowNs)) {
                first = false;
                if (couldGo(other, nowNs)) { // with time, its place in the order has changed
                    asking.ahead.add(other);
                }
            }
        }
        return first;
    }

    /** Whether nothing is in the way of what a taker waits for. */
    private boolean couldGo(final TurnTaker taker, final long nowNs) {
        for (int c = 0; c < RequestClass.COUNT; c++) {
            final SliceSet slices = taker.waiting[c];
            if (!slices.isEmpty() && !othersRun(taker, c, slices) && isFirst(taker, c, slices, nowNs)) {
                return true;
            }
        }
        return false;
    }

    /** Whether {@code other} waits for some of these slices and goes before {@code taker}. */
    private boolean isBefore(
            final TurnTaker other,
            final TurnTaker taker,
            final int c,
            final SliceSet slices,
            final long nowNs) {
        final Rules now = rules;
        for (int otherClass = 0; otherClass < RequestClass.COUNT; otherClass++) {
            if (now.conflict(c, otherClass)
                    && other.waiting[otherClass].overlaps(slices)
                    && precedes(other, otherClass, taker, c, nowNs)) {
                return true;
            }
        }
        return false;
    }

    private boolean precedes(
            final TurnTaker a, final int classOfA, final TurnTaker b, final int classOfB, final long nowNs) {
        if (classOfA != classOfB) {
            return classOfA == RequestClass.STRICT.ordinal();
        }
        final int c = classOfA;
        int order = 0;
        switch (rules.order(RequestClass.all()[c])) {
            case ORDER_EDF:
                order = Long.compare(a.deadlineNs[c], b.deadlineNs[c]);
                break;
            case ORDER_ROUND_ROBIN:
                final boolean agedA = isAged(a, c, nowNs);
                final boolean agedB = isAged(b, c, nowNs);
                order = Boolean.compare(agedB, agedA);
                if (order == 0 && !agedA) {
                    order = Long.compare(a.lastTurnNs[c], b.lastTurnNs[c]);
                }
                break;
            default:
                break;
        }
        order = order == 0 ? Long.compare(a.arrivalNs[c], b.arrivalNs[c]) : order;
        return order == 0 ? a.number < b.number : order < 0;
    }

    private static boolean isAged(final TurnTaker taker, final int c, final long nowNs) {
        return taker.ageingNs > 0 && nowNs - taker.arrivalNs[c] >= taker.ageingNs;
    }

    /** Call those that waited for what a taker gave free, and that nobody goes before. */
    private void callNext(final TurnTaker from, final long nowNs, final Later later) {
        final Rules now = rules;
        for (final TurnTaker taker : active) {
            if (taker == from) {
                continue;
            }
            for (int c = 0; c < RequestClass.COUNT; c++) {
                SliceSet freed = SliceSet.NONE;
                for (int other = 0; other < RequestClass.COUNT; other++) {
                    freed = now.conflict(c, other) ? freed.or(from.freed(other)) : freed;
                }
                final SliceSet slices = taker.waiting[c].and(freed);
                if (!slices.isEmpty() && isFirst(taker, c, slices, nowNs)) {
                    later.later(taker.decide);
                }
            }
        }
    }

    private boolean isFirst(final TurnTaker taker, final int c, final SliceSet slices, final long nowNs) {
        for (final TurnTaker other : active) {
            if (other != taker && isBefore(other, taker, c, slices, nowNs)) {
                return false;
            }
        }
        return true;
    }
}
