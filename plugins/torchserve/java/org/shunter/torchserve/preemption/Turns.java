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
    private final ControlPage page;
    private final ToIntFunction<SliceSet> cpus;
    /** Those that run or wait. */
    private final List<TurnTaker> active = new ArrayList<>();

    /** Where to put what is called once no lock is held. */
    public interface Later {
        void later(Runnable action);
    }

    private volatile TurnRules rules = new TurnRules(ORDER_CONCURRENT, ORDER_CONCURRENT, false);
    private TurnRules obeyed = rules;
    private long takers;

    public Turns(final ControlPage page) {
        this(page, Slices::cpus);
    }

    /** {@code cpus}: how many CPUs there are among some slices. */
    Turns(final ControlPage page, final ToIntFunction<SliceSet> cpus) {
        this.page = page;
        this.cpus = cpus;
    }

    /** What the page says now. */
    public TurnRules rules() {
        final int strict = order(page.get(H_STRICT_ORDER));
        final int bestEffort = order(page.get(H_BEST_EFFORT_ORDER));
        final boolean exclusive = page.get(H_EXCLUSIVE) == 1;
        final TurnRules before = rules;
        if (before.strict() == strict
                && before.bestEffort() == bestEffort
                && before.exclusive() == exclusive) {
            return before;
        }
        final TurnRules now = new TurnRules(strict, bestEffort, exclusive);
        rules = now;
        return now;
    }

    private static int order(final long word) {
        return word >= ORDER_CONCURRENT && word <= ORDER_ROUND_ROBIN ? (int) word : ORDER_CONCURRENT;
    }

    /** When the page says something else than at the last call, who waits decides by that. */
    public synchronized void obey(final Later later) {
        final TurnRules now = rules();
        if (!now.equals(obeyed)) {
            obeyed = now;
            active.forEach(taker -> later.later(taker.decide));
        }
    }

    /** A model that runs nothing yet; {@code decide} is called, without any lock, when it may go. */
    public synchronized TurnTaker join(final Runnable decide) {
        return new TurnTaker(this, decide, takers++);
    }

    /** The rules of this moment; its lock is held. */
    TurnRules current() {
        return rules;
    }

    void enlist(final TurnTaker taker) {
        if (!taker.listed) {
            taker.listed = true;
            active.add(taker);
        }
    }

    void leave(final TurnTaker taker) {
        taker.listed = false;
        active.remove(taker);
    }

    private static boolean runs(
            final TurnTaker taker, final int c, final SliceSet slices, final TurnRules now) {
        for (int other = 0; other < RequestClass.COUNT; other++) {
            if (now.conflict(c, other) && taker.running[other].overlaps(slices)) {
                return true;
            }
        }
        return false;
    }

    /** Whether what others run leaves no room for the next batch of a taker. */
    private boolean othersRun(final TurnTaker taker, final int c, final SliceSet slices) {
        final TurnRules now = rules;
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

    boolean mayStart(final TurnTaker asking, final int c, final SliceSet slices, final long nowNs) {
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
        final TurnRules now = rules;
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
    void callNext(final TurnTaker from, final long nowNs, final Later later) {
        final TurnRules now = rules;
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
