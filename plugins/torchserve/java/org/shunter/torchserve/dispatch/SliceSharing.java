package org.shunter.torchserve.dispatch;

import java.util.ArrayList;
import java.util.List;
import org.shunter.torchserve.forming.RequestClass;
import org.shunter.torchserve.page.Commands;
import org.shunter.torchserve.page.ModelSlot;
import org.shunter.torchserve.page.SliceSet;
import org.shunter.torchserve.placement.Slices;
import org.shunter.torchserve.preemption.Hold;
import org.shunter.torchserve.preemption.TurnRules;
import org.shunter.torchserve.preemption.TurnTaker;
import org.shunter.torchserve.preemption.Turns;
import org.shunter.torchserve.queue.Batch;
import org.shunter.torchserve.queue.BatchWorker;
import org.shunter.torchserve.queue.Effects;
import org.shunter.torchserve.queue.Entry;
import org.shunter.torchserve.queue.RequestQueue;
import org.shunter.torchserve.queue.WorkerGroup;

/**
 * What one model's work means for the others on its slices: which it holds for strict work, the
 * turns that it takes, and the room in processes of the pool. All are computed anew from its queue
 * and its workers after every event, and not counted up and down, so that nothing stays held for
 * ever. Guarded by its dispatcher's lock.
 */
final class SliceSharing {
    private final Object lock;
    private final ModelSlot slot;
    private final RequestQueue queue;
    private final CurrentWorkers current;
    private final Commands commands;
    private final Hold line;
    private final Hold.Part hold;
    private final Turns turns;
    private final TurnTaker taker;
    /** Workers that were given a batch, whether or not they still serve. */
    private final List<BatchWorker> sent = new ArrayList<>();

    final PoolSharing pool;

    private TurnRules rules;
    private boolean gone;

    SliceSharing(
            final Object lock,
            final ModelSlot slot,
            final RequestQueue queue,
            final CurrentWorkers current,
            final Commands commands,
            final Hold line,
            final Turns turns,
            final Runnable decide) {
        this.lock = lock;
        this.slot = slot;
        this.queue = queue;
        this.current = current;
        this.commands = commands;
        this.line = line;
        this.hold = line.part();
        this.turns = turns;
        this.taker = turns.join(decide);
        this.rules = turns.rules();
        this.pool = new PoolSharing(lock, queue, current, commands, sent, decide);
    }

    /** Whether it holds slices; read without the lock. */
    boolean holds() {
        return hold.holds();
    }

    /** A strict request came: best effort need not wait for the plan to stand still. */
    void announce(final long now) {
        assert Thread.holdsLock(lock);
        rules = turns.rules();
        hold.show(heldSlices(), slot.index(), now);
    }

    /** A worker could start on a batch now. */
    void begins(final BatchWorker worker, final Batch batch, final long now) {
        final WorkerGroup.Place place = worker.group.place;
        batch.disturbed = place.yields() && line.disturbs(place.slices(), now, now);
        batch.holds = place.yields() ? line.changes() : 0;
    }

    /** Whether a worker may have stood still for strict work while it ran a batch. */
    boolean disturbed(final BatchWorker worker, final Batch batch, final long now) {
        final WorkerGroup.Place place = worker.group.place;
        return batch.disturbed
                || batch.excusedNs > 0
                || place.yields()
                        && (line.changes() != batch.holds
                                || line.disturbs(place.slices(), batch.startNs, now));
    }

    /** A worker was given a batch. */
    void sent(final BatchWorker worker, final Batch batch, final long now) {
        if (!sent.contains(worker)) {
            sent.add(worker);
        }
        progress(batch, now);
    }

    /** A batch began or ended. */
    void progress(final Batch batch, final long now) {
        assert Thread.holdsLock(lock);
        if (batch.hasStrict()) {
            hold.progress(now);
        }
    }

    /** A decision begins. */
    void begin(final long now) {
        assert Thread.holdsLock(lock);
        if (pool.isUsed()) {
            pool.begin(now);
        }
        rules = turns.rules();
        if (rules.apply() || taker.isActive()) {
            taker.begin(
                    running(RequestClass.STRICT), running(RequestClass.BEST_EFFORT), usedCpus());
        }
    }

    /** Whether any batches wait for those of other models. */
    boolean isShared() {
        return rules.apply() || pool.isUsed();
    }

    /** Whether a worker's batches of a class take turns with those of others. */
    boolean takesTurns(final BatchWorker worker, final RequestClass requestClass) {
        // Best effort that shares a process waits for its room, which is a turn, too.
        return rules.apply(requestClass, worker.group.place.yields() && worker.room == null);
    }

    /** Whether a worker may be given a batch of a class now; else the dispatcher is called. */
    boolean mayStart(final BatchWorker worker, final RequestClass requestClass, final long now) {
        if (requestClass == RequestClass.BEST_EFFORT
                && rules.apply() // else that is from long ago
                && taker.strictWaits(worker.group.place.slices())) {
            return false; // the turn may come before best effort has ended
        }
        final Entry alone = queue.peekAlone(requestClass);
        final long aloneNs = alone == null ? Entry.NEVER : alone.arrivalNs;
        final long oldestNs = Math.min(aloneNs, queue.oldestArrivalNs(requestClass));
        return (!takesTurns(worker, requestClass)
                        || takeTurn(worker, requestClass, alone, oldestNs, now))
                && pool.mayStart(worker, requestClass, oldestNs, now);
    }

    private boolean takeTurn(
            final BatchWorker worker,
            final RequestClass requestClass,
            final Entry alone,
            final long oldestNs,
            final long now) {
        final Entry first = queue.peek(requestClass);
        final long aloneDeadlineNs = alone == null ? Entry.NEVER : alone.deadlineNs;
        return taker.take(
                worker,
                requestClass,
                worker.group.place.slices(),
                cpus(worker),
                oldestNs,
                first == null ? aloneDeadlineNs : Math.min(aloneDeadlineNs, first.deadlineNs),
                commands.ageingUs * 1000,
                now);
    }

    /** An event is over. */
    void settle(final long now, final Effects effects) {
        assert Thread.holdsLock(lock);
        sent.removeIf(worker -> worker.inFlight.isEmpty());
        if (pool.isUsed()) {
            pool.settle(gone, now, effects);
        }
        rules = turns.rules();
        hold.show(gone ? SliceSet.NONE : heldSlices(), slot.index(), now);
        if (rules.apply() || taker.isActive()) {
            taker.settle(
                    running(RequestClass.STRICT),
                    running(RequestClass.BEST_EFFORT),
                    usedCpus(),
                    couldStart(RequestClass.STRICT),
                    couldStart(RequestClass.BEST_EFFORT),
                    now,
                    effects);
        }
    }

    /** The model is not served any more. */
    void leave(final long now, final Effects effects) {
        gone = true;
        settle(now, effects);
    }

    /**
     * Slices on which strict requests run, or wait for a worker that is ready: one that is still
     * loading may take long, and nobody is helped by standing still for it.
     */
    private SliceSet heldSlices() {
        SliceSet held = SliceSet.NONE;
        if (rules.exclusive()) {
            return held;
        }
        if (queue.waiting(RequestClass.STRICT) > 0) {
            final List<BatchWorker> workers = current.workers();
            for (int i = 0; i < workers.size(); i++) {
                final WorkerGroup.Place place = workers.get(i).group.place;
                if (!place.yields() && current.isReadyFor(workers.get(i), RequestClass.STRICT)) {
                    held = held.or(place.slices());
                }
            }
        }
        for (int i = 0; i < sent.size(); i++) {
            final WorkerGroup.Place place = sent.get(i).group.place;
            if (!place.yields() && runsStrict(sent.get(i))) {
                held = held.or(place.slices());
            }
        }
        return held;
    }

    /** It holds two batches at most. */
    private static boolean runsStrict(final BatchWorker worker) {
        final Batch first = worker.inFlight.peekFirst();
        return first != null && (first.hasStrict() || worker.inFlight.peekLast().hasStrict());
    }

    /** Whether requests of a class wait that a worker is free for. */
    private boolean couldStart(final RequestClass requestClass) {
        if (queue.waiting(requestClass) > 0) {
            for (final BatchWorker worker : current.workers()) {
                if (worker.inFlight.isEmpty() && current.isReadyFor(worker, requestClass)) {
                    return true;
                }
            }
        }
        return false;
    }

    /** Slices on which batches of a class run that take turns. */
    private SliceSet running(final RequestClass requestClass) {
        SliceSet running = SliceSet.NONE;
        for (final BatchWorker worker : sent) {
            if (takesTurns(worker, requestClass)) {
                for (final Batch batch : worker.inFlight) {
                    if (batch.requestClass == requestClass) {
                        running = running.or(worker.group.place.slices());
                    }
                }
            }
        }
        return running;
    }

    /** CPUs that a worker uses: all of its slices unless its group says how many. */
    private static int cpus(final BatchWorker worker) {
        final int threads = worker.group.config().threads();
        return threads > 0 ? threads : Math.max(1, Slices.cpus(worker.group.place.slices()));
    }

    /** CPUs that best-effort batches use which take turns. */
    private int usedCpus() {
        int used = 0;
        for (final BatchWorker worker : sent) {
            final Batch batch = worker.inFlight.peekFirst();
            if (batch != null
                    && batch.requestClass == RequestClass.BEST_EFFORT
                    && takesTurns(worker, RequestClass.BEST_EFFORT)) {
                used += cpus(worker);
            }
        }
        return used;
    }
}
