package org.shunter.torchserve.dispatch;

import java.util.ArrayList;
import java.util.List;
import java.util.function.LongConsumer;
import java.util.function.LongSupplier;
import org.shunter.torchserve.forming.RequestClass;
import org.shunter.torchserve.page.Commands;
import org.shunter.torchserve.page.ControlPage;
import org.shunter.torchserve.page.ModelSlot;
import org.shunter.torchserve.page.SliceSet;
import org.shunter.torchserve.preemption.Hold;
import org.shunter.torchserve.preemption.Turns;
import org.shunter.torchserve.queue.Answers;
import org.shunter.torchserve.queue.Batch;
import org.shunter.torchserve.queue.BatchWorker;
import org.shunter.torchserve.queue.Effects;
import org.shunter.torchserve.queue.Entry;
import org.shunter.torchserve.queue.Loss;
import org.shunter.torchserve.queue.Refusal;
import org.shunter.torchserve.queue.Reply;
import org.shunter.torchserve.queue.RequestQueue;
import org.shunter.torchserve.queue.Wakeup;
import org.shunter.torchserve.queue.WorkerGroup;
import org.shunter.torchserve.queue.WorkerState;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Decides, for one model, which waiting requests go to which worker and when. Driven by events: a
 * request offered, a reply received, a worker that came or went, a timer. Every event runs under
 * one short lock; writing and answering happen after it is released.
 */
public final class Dispatcher {
    private static final Logger LOGGER = LoggerFactory.getLogger(Dispatcher.class);
    private static final long STRICT_MEMORY_NS = 1_000_000_000L;
    private static final long AFTER_FAULT_NS = 100_000_000L;

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
     */
    public record Shared(
            Wakeup.Timer timer,
            Hold hold,
            Turns turns,
            LongSupplier clock,
            LongConsumer answered) {}

    private final String name;
    private final ModelSlot slot;
    private final Commands commands;
    private final LongSupplier clock;
    private final Telemetry telemetry;
    private final Wakeup wakeup;
    private final RequestQueue queue = new RequestQueue(this);
    private final CurrentWorkers current;
    private final BatchBuilder builder;
    private final BatchPlanner plan;
    private final RequestFailures failures;
    private final AdmissionControl admission;
    private final SliceSharing sharing;
    private final LongConsumer answered;

    private int inFlightRequests;
    private int inFlightBatches;
    private long arrivals;
    private boolean warnedOfYielding;
    private long lastStrictNs = Long.MIN_VALUE / 2;

    public Dispatcher(
            final String name,
            final ModelSlot slot,
            final Commands commands,
            final Limits limits,
            final Shared shared) {
        this.name = name;
        this.slot = slot;
        this.commands = commands;
        this.clock = shared.clock();
        this.answered = shared.answered();
        this.telemetry = new Telemetry(slot);
        this.wakeup = new Wakeup(shared.timer(), this::decideAgain);
        final Forecast forecast = new Forecast(commands);
        this.current = new CurrentWorkers(this, commands, forecast, limits.sloNs());
        this.builder = new BatchBuilder(this, queue, current, forecast, commands);
        this.sharing =
                new SliceSharing(
                        this,
                        slot,
                        queue,
                        current,
                        commands,
                        shared.hold(),
                        shared.turns(),
                        this::decideAgain);
        this.plan =
                new BatchPlanner(
                        this,
                        queue,
                        current,
                        builder,
                        forecast,
                        commands,
                        sharing,
                        new DeliberateWait(commands, limits.registeredWaitUs(), limits.company()));
        this.failures = new RequestFailures(this, name, telemetry);
        this.admission =
                new AdmissionControl(this, name, limits.capacity(), queue, current, commands, failures);
    }

    /**
     * Take a request.
     *
     * @return null, or why it was not taken
     */
    public Refusal offer(final Entry entry) {
        final Effects effects = new Effects();
        final Refusal refusal;
        synchronized (this) {
            telemetry.arrived(entry.requestClass);
            if (entry.stage == Entry.Stage.DONE) {
                return null; // the client hung up in the meantime
            }
            obey(effects);
            refusal = admission.refusalOf(entry, effects);
            if (refusal != null) {
                entry.stage = Entry.Stage.DONE; // its closing connection is not a client that left
                telemetry.rejected(entry);
            } else {
                accept(entry);
                decide(entry.arrivalNs, effects);
            }
        }
        effects.run();
        return refusal;
    }

    private void accept(final Entry entry) {
        plan.settle(entry.arrivalNs, arrivals);
        arrivals++;
        queue.add(entry);
        if (entry.requestClass == RequestClass.STRICT) {
            lastStrictNs = entry.arrivalNs;
            sharing.announce(entry.arrivalNs);
            warnOfYielding();
        }
    }

    private void warnOfYielding() {
        if (!warnedOfYielding && current.yields()) {
            warnedOfYielding = true;
            LOGGER.warn(
                    "A strict request for {}, all of whose workers give way: nobody gives way to it",
                    name);
        }
    }

    /** Count a request that was refused before it became an entry. */
    public synchronized void countRejected(final RequestClass requestClass) {
        telemetry.arrived(requestClass);
        telemetry.rejected(requestClass);
    }

    /** The client of a request is gone. */
    public void abandon(final Entry entry) {
        final Effects effects = new Effects();
        synchronized (this) {
            if (entry.stage == Entry.Stage.NEW) {
                entry.stage = Entry.Stage.DONE;
                telemetry.abandoned(entry);
            } else if (entry.stage == Entry.Stage.QUEUED) {
                queue.remove(entry, Entry.Stage.DONE);
                telemetry.abandoned(entry);
                settle(effects);
            }
        }
        effects.run();
    }

    /** A worker answered its oldest batch, or a part of it. */
    public void onReply(final BatchWorker worker, final Reply reply) {
        final long receivedNs = clock.getAsLong();
        final Effects effects = new Effects();
        synchronized (this) {
            final Batch batch = worker.inFlight.peekFirst();
            if (batch == null) {
                throw new IllegalStateException("a reply without a batch");
            }
            if (Answers.isPartial(reply)) {
                batch.heardNs = receivedNs;
                batch.entries.forEach(entry -> entry.streamed = true);
                effects.deliver(batch, reply);
            } else {
                final int[] statuses = Answers.statuses(batch, reply);
                take(worker, batch);
                effects.deliver(batch, reply); // from here on, whatever fails below
                guard("counting an answer", () -> account(worker, batch, reply, statuses, receivedNs));
                endIfDrained(worker, effects);
                decide(receivedNs, effects);
            }
        }
        effects.run();
        answered.accept(receivedNs);
    }

    /**
     * A fault costs what it interrupts, not the answers that are on their way; what waits is looked
     * at again.
     */
    private void guard(final String what, final Runnable action) {
        try {
            action.run();
        } catch (RuntimeException e) {
            LOGGER.error("{}: {} failed", name, what, e);
            final long now = clock.getAsLong();
            wakeup.at(now + AFTER_FAULT_NS, now);
        }
    }

    /** A batch is not in flight any more. */
    private void take(final BatchWorker worker, final Batch batch) {
        assert Thread.holdsLock(this);
        worker.remove(batch);
        inFlightBatches--;
        inFlightRequests -= batch.size();
        batch.entries.forEach(entry -> entry.stage = Entry.Stage.DONE);
    }

    private static void endIfDrained(final BatchWorker worker, final Effects effects) {
        if (worker.state == WorkerState.DRAINING && worker.inFlight.isEmpty()) {
            effects.later(worker::end);
        }
    }

    /** Only while its group is current: the words are those of the current generation. */
    private void publishFit(final BatchWorker worker) {
        if (current.workers().contains(worker)) {
            Telemetry.publishFit(slot, worker.group);
        }
    }

    private void account(
            final BatchWorker worker,
            final Batch batch,
            final Reply reply,
            final int[] statuses,
            final long now) {
        plan.settle(now, arrivals);
        worker.freeSinceNs = now;
        sharing.progress(batch, now);
        telemetry.answered(batch, statuses, now);
        worker.group.batches++;
        worker.group.requests += batch.size();
        final boolean disturbed =
                batch.disturbed
                        || batch.excusedNs > 0
                        || sharing.disturbed(worker, batch.startNs, now);
        if (reply.code() == 200 && !batch.entries.get(0).alone() && !disturbed) {
            worker.group.fit.observe(batch.size(), now - batch.startNs);
            publishFit(worker);
        }
        plan.answered(worker, batch.size(), now, arrivals);
        begin(worker.inFlight.peekFirst(), worker, now);
    }

    /** A worker could start on this batch now. */
    private void begin(final Batch next, final BatchWorker worker, final long now) {
        if (next != null) {
            next.startNs = now;
            next.heardNs = now;
            next.disturbed = sharing.disturbed(worker, now, now);
        }
    }

    /**
     * A batch could not be written, which is not its worker's fault. Its requests are tried each
     * alone; one that was alone is the cause.
     */
    public void onUnsent(final BatchWorker worker, final Batch batch, final int status, final String why) {
        final Effects effects = new Effects();
        synchronized (this) {
            if (!worker.inFlight.contains(batch)) {
                return; // the worker died meanwhile, and it was taken back
            }
            final boolean ran = worker.inFlight.peekFirst() == batch;
            take(worker, batch);
            if (batch.size() == 1) {
                failures.failed(batch.entries, status, why, effects);
            } else {
                for (int i = batch.size() - 1; i >= 0; i--) {
                    batch.entries.get(i).isolated = true;
                    queue.restore(batch.entries.get(i));
                }
            }
            final long now = clock.getAsLong();
            if (ran) {
                begin(worker.inFlight.peekFirst(), worker, now);
            }
            endIfDrained(worker, effects);
            decide(now, effects);
        }
        effects.run();
    }

    /** A worker loaded its model. */
    public void onReady(final BatchWorker worker) {
        final Effects effects = new Effects();
        synchronized (this) {
            apply(worker, WorkerState.Event.LOADED);
            worker.freeSinceNs = clock.getAsLong();
            decide(clock.getAsLong(), effects);
        }
        effects.run();
    }

    /**
     * A worker died. What it was running may be tried once more, alone; what it had not begun goes
     * back to its place in the queue.
     *
     * @return false when it had ended before
     */
    public boolean onLost(final BatchWorker worker, final Loss loss) {
        final Effects effects = new Effects();
        synchronized (this) {
            if (!apply(worker, WorkerState.Event.LOST)) {
                return false;
            }
            takeBack(worker, loss, effects);
            decide(clock.getAsLong(), effects);
        }
        effects.run();
        return true;
    }

    private void takeBack(final BatchWorker worker, final Loss loss, final Effects effects) {
        final Batch running = worker.inFlight.peekFirst();
        while (!worker.inFlight.isEmpty()) { // backwards, because what is put back goes in front
            final Batch batch = worker.inFlight.peekLast();
            take(worker, batch);
            final boolean begun = batch == running && batch.sent;
            for (int i = batch.size() - 1; i >= 0; i--) {
                final Entry entry = batch.entries.get(i);
                entry.deaths += begun && loss.isDeath() ? 1 : 0;
                if (begun && !loss.permitsAnotherRun(entry)) {
                    failures.givenUp(entry, loss, effects);
                } else {
                    telemetry.retried();
                    queue.restore(entry);
                }
            }
        }
    }

    /** A worker ends for good; false when it had ended before. */
    public boolean onEnd(final BatchWorker worker) {
        final Effects effects = new Effects();
        synchronized (this) {
            if (!apply(worker, WorkerState.Event.END)) {
                return false;
            }
            takeBack(worker, Loss.stopped(), effects);
            decide(clock.getAsLong(), effects);
        }
        effects.run();
        return true;
    }

    /** Give a worker no more batches; true when it holds none and can end now. */
    public boolean drain(final BatchWorker worker) {
        final Effects effects = new Effects();
        final boolean over;
        synchronized (this) {
            apply(worker, WorkerState.Event.DRAIN);
            over = worker.state != WorkerState.DRAINING || worker.inFlight.isEmpty();
            settle(effects);
        }
        effects.run();
        return over;
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
        final Effects effects = new Effects();
        synchronized (this) {
            current.replaceBy(workers);
            if (!workers.isEmpty()) {
                admission.workersCame();
            }
            failUnserved(effects);
            decide(clock.getAsLong(), effects);
        }
        effects.run();
    }

    /** A class that lost its last worker would wait for ever. */
    private void failUnserved(final Effects effects) {
        for (final RequestClass requestClass : RequestClass.all()) {
            if (!current.workers().isEmpty() && !current.hasWorkerFor(requestClass)) {
                final String reason = admission.reasonAgainst(requestClass);
                failures.failed(queue.takeAll(requestClass), 503, reason, effects);
            }
        }
    }

    /** Refuse what comes from now on, with this text; null accepts again. */
    public synchronized void refuse(final String reason) {
        admission.refuse(reason);
    }

    /** Answer all that waits with an error. */
    public void failWaiting(final int status, final String text) {
        final Effects effects = new Effects();
        synchronized (this) {
            for (final RequestClass requestClass : RequestClass.all()) {
                failures.failed(queue.takeAll(requestClass), status, text, effects);
            }
            settle(effects);
        }
        effects.run();
    }

    /** Read what this object's lock guards; lock nothing else but a slot's words meanwhile. */
    public synchronized void read(final Runnable reader) {
        reader.run();
    }

    /** Nothing waits and nothing runs. */
    public synchronized boolean isIdle() {
        return queue.size() == 0 && inFlightRequests == 0;
    }

    public synchronized int waiting() {
        return queue.size();
    }

    public int capacity() {
        return admission.capacity();
    }

    /** Shares of requests with a deadline that met it lately. */
    public SloWindow sloWindow() {
        return telemetry.window();
    }

    /** The first worker whose running inference started before that time, or null. */
    public synchronized <W extends BatchWorker> W overdue(final List<W> candidates, final long beforeNs) {
        for (final W worker : candidates) {
            final Batch batch = worker.inFlight.peekFirst();
            if (batch != null
                    && batch.heardNs - beforeNs < 0
                    && !batch.entries.get(0).describes()) {
                return worker;
            }
        }
        return null;
    }

    /**
     * Batches that had to stand still for strict work are not late by that, up to a limit: one that
     * hangs shall be found some time.
     *
     * @param heldSlices where strict work was
     * @param forNs how long
     * @param mostNs of a batch's time altogether
     */
    public synchronized void excuse(
            final List<? extends BatchWorker> candidates,
            final SliceSet heldSlices,
            final long forNs,
            final long mostNs) {
        for (final BatchWorker worker : candidates) {
            final WorkerGroup.Place place = worker.group.place;
            final Batch batch = worker.inFlight.peekFirst();
            if (batch != null
                    && place.yields()
                    && place.slices().overlaps(heldSlices)
                    && batch.excusedNs < mostNs) {
                batch.excusedNs += forNs;
                batch.heardNs += forNs;
            }
        }
    }

    /** Whether strict requests of this model hold slices. */
    public boolean holds() {
        return sharing.holds();
    }

    /** Nothing happened to this model, but it may be commanded otherwise, or say so to others. */
    public void refresh() {
        final Effects effects = new Effects();
        synchronized (this) {
            if (obey(effects)) {
                decide(clock.getAsLong(), effects);
            } else {
                sharing.settle(clock.getAsLong(), effects);
            }
        }
        effects.run();
    }

    /** Take over what the controller wrote; true when that was something. */
    private boolean obey(final Effects effects) {
        final boolean changed = commands.refresh();
        if (changed) {
            failUnserved(effects);
        }
        return changed;
    }

    /** The model's slot goes to another model: later events of this one must not touch it. */
    public void detach(final ControlPage page) {
        final Effects effects = new Effects();
        synchronized (this) {
            sharing.leave(clock.getAsLong(), effects);
            page.release(slot);
        }
        effects.run();
    }

    private void decideAgain() {
        final Effects effects = new Effects();
        synchronized (this) {
            decide(clock.getAsLong(), effects);
        }
        effects.run();
    }

    private void decide(final long now, final Effects effects) {
        guard("deciding", () -> release(now, effects));
        builder.begin(now); // requests would keep their bodies until the next decision
        settle(effects);
    }

    private void release(final long now, final Effects effects) {
        obey(effects);
        plan.settle(now, arrivals);
        sharing.begin();
        if (queue.size() == 0) {
            return;
        }
        expire(now, effects);
        guard("planning", () -> plan.next(now, hasStrictTraffic(now)));
        for (final BatchBuilder.Assignment assignment : builder.assignments()) {
            send(assignment, now, effects);
        }
        builder.givenUp().forEach(entry -> failures.expired(entry, now, effects));
        wakeup.at(Math.min(plan.wakeNs(), expiryNs(now)), now);
    }

    /** Strict requests came lately, or still wait. */
    private boolean hasStrictTraffic(final long now) {
        return now - lastStrictNs < STRICT_MEMORY_NS || queue.waiting(RequestClass.STRICT) > 0;
    }

    /** When to look again for what can no longer be answered in time. */
    private long expiryNs(final long now) {
        final long deadlineNs = queue.earliestDeadlineNs();
        final long hopelessNs = deadlineNs == Entry.NEVER ? deadlineNs : deadlineNs - current.leastNs();
        return hopelessNs > now ? hopelessNs : deadlineNs;
    }

    /** Answer what can no longer be answered in time. */
    private void expire(final long now, final Effects effects) {
        if (queue.earliestDeadlineNs() == Entry.NEVER) {
            return;
        }
        final List<Entry> expired = new ArrayList<>();
        for (final RequestClass requestClass : RequestClass.all()) {
            queue.takeExpired(requestClass, now + current.soonestNs(requestClass, now), expired);
        }
        expired.forEach(entry -> failures.expired(entry, now, effects));
    }

    private void send(final BatchBuilder.Assignment assignment, final long now, final Effects effects) {
        final BatchWorker worker = assignment.worker();
        final Batch batch = new Batch(assignment.entries(), assignment.requestClass(), now);
        inFlightBatches++;
        inFlightRequests += batch.size();
        worker.add(batch);
        effects.flush(worker);
        guard(
                "sending",
                () -> {
                    batch.entries.forEach(entry -> entry.job.setScheduled());
                    batch.disturbed = sharing.disturbed(worker, now, now);
                    sharing.sent(worker, batch, now);
                });
    }

    /** Every event ends so: what this model says to others is what is true now. */
    private void settle(final Effects effects) {
        final long now = clock.getAsLong();
        guard("settling", () -> sharing.settle(now, effects));
        telemetry.publish(queue, inFlightRequests, inFlightBatches, plan.threshold(), now);
    }
}
