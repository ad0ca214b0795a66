package org.shunter.torchserve.dispatch;

import java.lang.ref.WeakReference;
import java.util.List;
import java.util.function.BiConsumer;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.function.LongConsumer;
import java.util.function.LongSupplier;
import org.shunter.torchserve.forming.RequestClass;
import org.shunter.torchserve.page.Commands;
import org.shunter.torchserve.page.ControlPage;
import org.shunter.torchserve.page.ModelSlot;
import org.shunter.torchserve.page.SliceSet;
import org.shunter.torchserve.preemption.Hold;
import org.shunter.torchserve.preemption.Turns;
import org.shunter.torchserve.queue.Batch;
import org.shunter.torchserve.queue.BatchWorker;
import org.shunter.torchserve.queue.Effects;
import org.shunter.torchserve.queue.Entry;
import org.shunter.torchserve.queue.Loss;
import org.shunter.torchserve.queue.Recent;
import org.shunter.torchserve.queue.Refusal;
import org.shunter.torchserve.queue.Reply;
import org.shunter.torchserve.queue.Telemetry;
import org.shunter.torchserve.queue.Wakeup;
import org.shunter.torchserve.queue.WorkerState;

/**
 * Decides, for one model, which waiting requests go to which worker and when. Driven by events: a
 * request offered, a reply received, a worker that came or went, a timer. Every event runs under
 * one short lock; writing and answering happen after it is released.
 */
public final class Dispatcher {
    /**
     * What a model's registration sets.
     *
     * @param capacity requests that may wait
     * @param registeredWaitUs longest deliberate wait
     * @param sloNs default deadline of strict requests, 0 for none
     * @param company whether a free worker waits for a full batch, as stock's do
     */
    public record Limits(int capacity, long registeredWaitUs, long sloNs, boolean company) {}

    /**
     * What the dispatchers of a server share.
     *
     * @param timer for what must happen at a time
     * @param hold what strict requests hold
     * @param turns whose turn it is
     * @param clock nanoseconds, as {@link System#nanoTime}
     * @param answered hears when each reply came, after its answers were sent
     * @param ended hears of each model's requests that end, or null
     */
    public record Shared(
            Wakeup.Timer timer, Hold hold, Turns turns, LongSupplier clock,
            LongConsumer answered, BiConsumer<String, Recent.Line> ended) {}

    /** For those who must not keep it. One for all: a request shall not cost another. */
    public final WeakReference<Dispatcher> reference = new WeakReference<>(this);

    private final ModelSlot slot;
    private final LongSupplier clock;
    private final LongConsumer answered;
    private final DispatchState state;

    public Dispatcher(
            final String name, final ModelSlot slot, final Commands commands,
            final Limits limits, final Shared shared) {
        this.slot = slot;
        this.clock = shared.clock();
        this.answered = shared.answered();
        this.state = new DispatchState(this, name, slot, commands, limits, shared, this::decideAgain);
    }

    /**
     * Take a request.
     *
     * @return null, or why it was not taken
     */
    public Refusal offer(final Entry entry) {
        return ask(effects -> state.offered(entry, effects));
    }

    /** Count a request that was refused before it became an entry. */
    public synchronized void countRejected(final RequestClass requestClass, final String why) {
        state.telemetry.arrived(requestClass);
        state.telemetry.rejected(requestClass, why);
    }

    /** The client of a request is gone. */
    public void abandon(final Entry entry) {
        event(effects -> state.abandoned(entry, effects));
    }

    /**
     * A worker answered its oldest batch, or a part of it.
     *
     * @return false when it had been given up before, with all that it held
     */
    public boolean onReply(final BatchWorker worker, final Reply reply) {
        final long receivedNs = clock.getAsLong();
        final Effects effects = new Effects();
        synchronized (this) {
            if (worker.state != WorkerState.READY && worker.state != WorkerState.DRAINING) {
                return false;
            }
            state.replied(worker, reply, receivedNs, effects);
        }
        effects.run();
        answered.accept(receivedNs);
        return true;
    }

    /**
     * A batch could not be written, which is not its worker's fault. Its requests are tried each
     * alone; one that was alone is the cause.
     */
    public void onUnsent(final BatchWorker worker, final Batch batch, final int status, final String why) {
        event(effects -> state.unsent(worker, batch, status, why, effects));
    }

    /** A worker loaded its model. */
    public void onReady(final BatchWorker worker) {
        event(
                effects -> {
                    apply(worker, WorkerState.Event.LOADED);
                    worker.freeSinceNs = clock.getAsLong();
                    state.decide(clock.getAsLong(), effects);
                });
    }

    /**
     * A worker died, and what it held is taken back.
     *
     * @return false when it had ended before
     */
    public boolean onLost(final BatchWorker worker, final Loss loss) {
        return ask(effects -> lose(worker, WorkerState.Event.LOST, loss, effects));
    }

    /** A worker ends for good; false when it had ended before. */
    public boolean onEnd(final BatchWorker worker) {
        return ask(effects -> lose(worker, WorkerState.Event.END, Loss.stopped(), effects));
    }

    private boolean lose(
            final BatchWorker worker, final WorkerState.Event event,
            final Loss loss, final Effects effects) {
        final boolean applies = apply(worker, event);
        if (applies) {
            state.lost(worker, loss, effects);
        }
        return applies;
    }

    /** Give a worker no more batches; true when it holds none and can end now. */
    public boolean drain(final BatchWorker worker) {
        return ask(
                effects -> {
                    apply(worker, WorkerState.Event.DRAIN);
                    state.settle(effects);
                    return worker.state != WorkerState.DRAINING || worker.inFlight.isEmpty();
                });
    }

    /** Move a worker on; false when the event means nothing in its state. */
    public synchronized boolean change(final BatchWorker worker, final WorkerState.Event event) {
        return apply(worker, event);
    }

    private boolean apply(final BatchWorker worker, final WorkerState.Event event) {
        assert Thread.holdsLock(this);
        final WorkerState next =
                worker.state == WorkerState.STOPPED ? null : worker.state.after(event);
        if (next == null) {
            return false;
        }
        worker.state = next;
        return true;
    }

    /** From now on batches go to these workers; the others finish what they hold. */
    public void setWorkers(final List<? extends BatchWorker> workers) {
        event(effects -> state.setWorkers(workers, effects));
    }

    /** Refuse what comes from now on, with this text; null accepts again. */
    public synchronized void refuse(final String reason) {
        state.admission.refuse(reason);
    }

    /** Answer all that waits with an error. */
    public void failWaiting(final int status, final String text) {
        event(effects -> state.failWaiting(status, text, effects));
    }

    /** Read what this object's lock guards; lock nothing else but a slot's words meanwhile. */
    public synchronized void read(final Runnable reader) {
        reader.run();
    }

    /** Nothing waits and nothing runs. */
    public synchronized boolean isIdle() {
        return state.queue.size() == 0 && state.inFlight.batches() == 0;
    }

    public synchronized int waiting() {
        return state.queue.size();
    }

    public int capacity() {
        return state.admission.capacity();
    }

    /** What is counted. */
    public Telemetry telemetry() {
        return state.telemetry;
    }

    /**
     * Give up the first worker whose running inference started before that time, as if it had died:
     * in one step, so that an answer of the last moment never makes the next batch pay for it.
     *
     * @return that worker, whose process is still to be ended, or null
     */
    public <W extends BatchWorker> W giveUpOverdue(
            final List<W> candidates, final long beforeNs, final Loss loss) {
        return ask(
                effects -> {
                    final W late = state.inFlight.overdue(candidates, beforeNs);
                    return late != null && lose(late, WorkerState.Event.LOST, loss, effects)
                            ? late
                            : null;
                });
    }

    /**
     * Batches that stood still for strict work are not late by that, up to a limit.
     * @param heldSlices where strict work was
     * @param forNs how long
     * @param mostNs of a batch's time altogether
     */
    public synchronized void excuse(
            final List<? extends BatchWorker> candidates,
            final SliceSet heldSlices, final long forNs, final long mostNs) {
        InFlight.excuse(candidates, heldSlices, forNs, mostNs);
    }

    /** Whether strict requests of this model hold slices. */
    public boolean holds() {
        return state.sharing.holds();
    }

    /** Batches of this model that wait for room in the pool; read without the lock. */
    public int waitsForRoom() {
        return state.sharing.pool.waiting();
    }

    /** Nothing happened to this model, but it may be commanded otherwise, or say so to others. */
    public void refresh() {
        event(state::refresh);
    }

    /** The model's slot goes to another model: later events of this one must not touch it. */
    public void detach(final ControlPage page) {
        event(
                effects -> {
                    try {
                        state.leave(effects);
                    } finally { // there are only so many slots
                        page.release(slot);
                    }
                });
    }

    private void decideAgain() {
        event(effects -> state.decide(clock.getAsLong(), effects));
    }

    private void event(final Consumer<Effects> change) {
        ask(
                effects -> {
                    change.accept(effects);
                    return null;
                });
    }

    /** Under the lock; then what follows, without. */
    private <T> T ask(final Function<Effects, T> change) {
        final Effects effects = new Effects();
        final T result;
        synchronized (this) {
            result = change.apply(effects);
        }
        effects.run();
        return result;
    }
}
