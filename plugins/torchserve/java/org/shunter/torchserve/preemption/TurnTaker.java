package org.shunter.torchserve.preemption;

import java.util.ArrayList;
import java.util.List;
import org.shunter.torchserve.forming.RequestClass;
import org.shunter.torchserve.page.SliceSet;

/**
 * One model. Only its dispatcher calls it, under its own lock; the words are guarded by the lock
 * of the turns, because the others read them.
 */
public final class TurnTaker {
    private static final long LONG_AGO_NS = Long.MIN_VALUE / 2;

    private final Turns turns;
    final Runnable decide;
    final long number;
    final SliceSet[] running = none();
    /** CPUs that its running batches use, and that the next one would use more. */
    final int[] width = new int[RequestClass.COUNT];

    final int[] more = new int[RequestClass.COUNT];
    /** Most CPUs that best effort has used since the last {@link #settle}. */
    private int widest;
    /** Workers that may start since {@link #begin}, by class: one decision asks several times. */
    private final List<List<Object>> allowed = List.of(new ArrayList<>(), new ArrayList<>());
    final SliceSet[] waiting = none();
    /** What it could not start since {@link #begin}. */
    private final SliceSet[] refused = none();
    /** What stood in others' way at any time since the last {@link #settle}. */
    private final SliceSet[] ran = none();
    private final SliceSet[] waited = none();
    final long[] arrivalNs = new long[RequestClass.COUNT];
    final long[] deadlineNs = new long[RequestClass.COUNT];
    final long[] lastTurnNs = {LONG_AGO_NS, LONG_AGO_NS};
    final List<TurnTaker> ahead = new ArrayList<>(2);
    long ageingNs;
    boolean listed;

    TurnTaker(final Turns turns, final Runnable decide, final long number) {
        this.turns = turns;
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
        synchronized (turns) {
            running[0] = strict;
            running[1] = bestEffort;
            width[1] = used;
            widest = Math.max(widest, used);
            ran[0] = ran[0].or(strict);
            ran[1] = ran[1].or(bestEffort);
            if (!(strict.isEmpty() && bestEffort.isEmpty())) {
                turns.enlist(this);
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
        synchronized (turns) {
            final TurnRules now = turns.current();
            final int c = requestClass.ordinal();
            arrivalNs[c] = oldestNs;
            deadlineNs[c] = tightestNs;
            ageingNs = ageing;
            more[c] = wanted;
            if (allowed.get(c).contains(worker)) {
                return true; // it is counted already
            }
            if (now.exclusive() && running[1 - c].overlaps(slices)) {
                if (requestClass == RequestClass.STRICT) {
                    refused[c] = refused[c].or(slices); // no more best effort goes before it
                }
                return false; // it decides again when that ends, without being called
            }
            if (turns.mayStart(this, c, slices, nowNs)) {
                running[c] = running[c].or(slices);
                width[c] += wanted;
                widest = Math.max(widest, width[1]);
                ran[c] = ran[c].or(slices);
                allowed.get(c).add(worker);
                turns.enlist(this);
                return true;
            }
            refused[c] = refused[c].or(slices);
            waiting[c] = waiting[c].or(slices);
            waited[c] = waited[c].or(slices);
            turns.enlist(this);
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
            final Turns.Later later) {
        allowed.forEach(List::clear);
        if (strict.isEmpty() && bestEffort.isEmpty() && !listed) {
            return;
        }
        synchronized (turns) {
            set(0, strict, strictWaits, nowNs);
            set(1, bestEffort, bestEffortWaits, nowNs);
            width[1] = used;
            for (final TurnTaker taker : ahead) {
                later.later(taker.decide);
            }
            ahead.clear();
            turns.callNext(this, nowNs, later);
            for (int c = 0; c < RequestClass.COUNT; c++) {
                ran[c] = running[c];
                waited[c] = waiting[c];
            }
            widest = used;
            if (running[0].isEmpty()
                    && running[1].isEmpty()
                    && waiting[0].isEmpty()
                    && waiting[1].isEmpty()) {
                turns.leave(this);
            }
        }
    }

    private void set(final int c, final SliceSet runs, final boolean waits, final long nowNs) {
        running[c] = runs;
        ran[c] = ran[c].or(runs);
        waiting[c] = waits ? refused[c] : SliceSet.NONE;
        lastTurnNs[c] = runs.isEmpty() ? lastTurnNs[c] : nowNs;
        if (!runs.isEmpty()) {
            turns.enlist(this);
        }
    }

    /** What stood in the others' way and does not any more. */
    SliceSet freed(final int c) {
        final boolean shares = turns.current().share(c);
        final SliceSet ended =
                shares && width[c] < widest ? ran[c] : ran[c].andNot(running[c]);
        final SliceSet stillThere = shares ? waiting[c] : waiting[c].or(running[c]);
        return ended.or(waited[c].andNot(stillThere));
    }

    private static SliceSet[] none() {
        return new SliceSet[] {SliceSet.NONE, SliceSet.NONE};
    }
}
