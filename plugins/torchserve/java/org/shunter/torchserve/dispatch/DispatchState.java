package org.shunter.torchserve.dispatch;

import java.util.List;
import java.util.function.LongSupplier;
import org.shunter.torchserve.forming.RequestClass;
import org.shunter.torchserve.page.Commands;
import org.shunter.torchserve.page.ModelSlot;
import org.shunter.torchserve.queue.Answers;
import org.shunter.torchserve.queue.Batch;
import org.shunter.torchserve.queue.BatchWorker;
import org.shunter.torchserve.queue.Effects;
import org.shunter.torchserve.queue.Entry;
import org.shunter.torchserve.queue.Loss;
import org.shunter.torchserve.queue.Refusal;
import org.shunter.torchserve.queue.Reply;
import org.shunter.torchserve.queue.RequestQueue;
import org.shunter.torchserve.queue.Telemetry;
import org.shunter.torchserve.queue.Wakeup;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * What a dispatcher knows of its model, and what it decides at each event. Every method is called
 * under its lock and leaves what must be done after it in the effects.
 */
final class DispatchState {
    private static final Logger LOGGER = LoggerFactory.getLogger(Dispatcher.class);
    private static final long STRICT_MEMORY_NS = 1_000_000_000L;

    final RequestQueue queue;
    final Telemetry telemetry;
    final AdmissionControl admission;
    final SliceSharing sharing;
    final InFlight inFlight;

    private final Object lock;
    private final String name;
    private final Commands commands;
    private final LongSupplier clock;
    private final Wakeup wakeup;
    private final FaultGuard guard;
    private final CurrentWorkers current;
    private final BatchBuilder builder;
    private final BatchPlanner planner;
    private final RequestFailures failures;
    private final Expiry expiry;

    private long arrivals;
    private boolean warnedOfYielding;
    private long lastStrictNs = Long.MIN_VALUE / 2;

    /** {@code decideAgain} takes the lock and calls {@link #decide}. */
    DispatchState(
            final Object lock, final String name, final ModelSlot slot, final Commands commands,
            final Dispatcher.Limits limits, final Dispatcher.Shared shared,
            final Runnable decideAgain) {
        this.lock = lock;
        this.name = name;
        this.commands = commands;
        this.clock = shared.clock();
        this.queue = new RequestQueue(lock);
        this.telemetry =
                new Telemetry(
                        slot,
                        shared.ended() == null ? null : line -> shared.ended().accept(name, line));
        this.wakeup = new Wakeup(shared.timer(), decideAgain);
        this.guard = new FaultGuard(name, wakeup, clock);
        final Forecast forecast = new Forecast(commands);
        this.current = new CurrentWorkers(lock, commands, forecast, limits.sloNs());
        this.builder = new BatchBuilder(lock, queue, current, forecast, commands);
        this.sharing =
                new SliceSharing(
                        lock, slot, queue, current, commands,
                        shared.hold(), shared.turns(), decideAgain);
        final DeliberateWait deliberateWait =
                new DeliberateWait(commands, limits.registeredWaitUs(), limits.company());
        this.planner =
                new BatchPlanner(
                        lock, queue, current, builder, forecast, commands, sharing, deliberateWait);
        this.failures = new RequestFailures(lock, name, telemetry);
        this.admission =
                new AdmissionControl(lock, name, limits.capacity(), queue, current, commands, failures);
        this.inFlight =
                new InFlight(lock, slot, queue, current, planner, failures, sharing, telemetry);
        this.expiry = new Expiry(queue, current, inFlight, failures);
    }

    /** A request comes; returns null, or why it was not taken. */
    Refusal offered(final Entry entry, final Effects effects) {
        assert Thread.holdsLock(lock);
        telemetry.arrived(entry.requestClass);
        if (entry.stage == Entry.Stage.DONE) {
            return null; // the client hung up in the meantime
        }
        obey(effects);
        final Refusal refusal = admission.refusalOf(entry, effects);
        if (entry.requestClass == RequestClass.STRICT) {
            // Also if it is refused: a long batch made it too late, and the next must be short.
            lastStrictNs = entry.arrivalNs;
        }
        if (refusal != null) {
            entry.end(); // its closing connection is not a client that left
            telemetry.rejected(entry, refusal.status(), refusal.text());
        } else {
            accept(entry);
            decide(entry.arrivalNs, effects);
        }
        return refusal;
    }

    private void accept(final Entry entry) {
        planner.settle(entry.arrivalNs, arrivals);
        arrivals++;
        queue.add(entry);
        if (entry.requestClass == RequestClass.STRICT) {
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

    void abandoned(final Entry entry, final Effects effects) {
        if (entry.stage == Entry.Stage.NEW) {
            entry.end();
            telemetry.abandoned(entry);
        } else if (entry.stage == Entry.Stage.QUEUED) {
            queue.remove(entry, Entry.Stage.DONE);
            telemetry.abandoned(entry);
            settle(effects);
        }
    }

    void replied(
            final BatchWorker worker,
            final Reply reply,
            final long receivedNs,
            final Effects effects) {
        final Batch batch = worker.inFlight.peekFirst();
        if (batch == null) {
            throw new IllegalStateException("a reply without a batch");
        }
        if (Answers.isPartial(reply)) {
            batch.heardNs = receivedNs;
            batch.entries.forEach(entry -> entry.streamed = true);
            effects.deliver(batch, reply);
            return;
        }
        final int[] statuses = Answers.statuses(batch, reply);
        inFlight.take(worker, batch);
        effects.deliver(batch, reply); // from here on, whatever fails below
        guard.run(
                "counting an answer",
                () -> inFlight.answered(worker, batch, reply, statuses, arrivals, receivedNs));
        InFlight.endIfDrained(worker, effects);
        decide(receivedNs, effects);
    }

    void unsent(
            final BatchWorker worker,
            final Batch batch,
            final int status,
            final String why,
            final Effects effects) {
        if (!worker.inFlight.contains(batch)) {
            return; // the worker died meanwhile, and it was taken back
        }
        final boolean ran = worker.inFlight.peekFirst() == batch;
        inFlight.take(worker, batch);
        final List<Entry> awaited = batch.endExpired();
        if (batch.size() == 1) {
            failures.failed(awaited, status, why, effects);
        } else {
            for (int i = awaited.size() - 1; i >= 0; i--) {
                awaited.get(i).isolated = true;
                queue.restore(awaited.get(i));
            }
        }
        final long now = clock.getAsLong();
        if (ran) {
            inFlight.begin(worker.inFlight.peekFirst(), worker, now);
        }
        InFlight.endIfDrained(worker, effects);
        decide(now, effects);
    }

    void lost(final BatchWorker worker, final Loss loss, final Effects effects) {
        while (!worker.inFlight.isEmpty()) { // a fault costs one batch, and no restart of the worker
            guard.run("taking back", () -> inFlight.takeBack(worker, loss, effects));
        }
        decide(clock.getAsLong(), effects);
    }

    /** The model is not served any more; no timer keeps it. */
    void leave(final Effects effects) {
        wakeup.cancel();
        sharing.leave(clock.getAsLong(), effects);
    }

    void setWorkers(final List<? extends BatchWorker> workers, final Effects effects) {
        current.replaceBy(workers);
        sharing.pool.setWorkers();
        if (!workers.isEmpty()) {
            admission.workersCame();
        }
        failUnserved(effects);
        decide(clock.getAsLong(), effects);
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

    void failWaiting(final int status, final String text, final Effects effects) {
        for (final RequestClass requestClass : RequestClass.all()) {
            failures.failed(queue.takeAll(requestClass), status, text, effects);
        }
        settle(effects);
    }

    void refresh(final Effects effects) {
        if (obey(effects)) {
            decide(clock.getAsLong(), effects);
        } else {
            sharing.settle(clock.getAsLong(), effects);
        }
    }

    /** Take over what the controller wrote; true when that was something. */
    private boolean obey(final Effects effects) {
        final boolean changed = commands.refresh();
        if (changed) {
            failUnserved(effects);
        }
        return changed;
    }

    void decide(final long now, final Effects effects) {
        guard.run("deciding", () -> release(now, effects));
        builder.begin(now); // requests would keep their bodies until the next decision
        settle(effects);
    }

    private void release(final long now, final Effects effects) {
        obey(effects);
        planner.settle(now, arrivals);
        sharing.begin(now);
        if (queue.size() == 0 && inFlight.earliestDeadlineNs() == Entry.NEVER) {
            return; // as after most answers
        }
        expiry.expire(now, effects);
        guard.run("planning", () -> planner.next(now, hasStrictTraffic(now), admission.wasFull(now)));
        for (final BatchBuilder.Assignment assignment : builder.assignments()) {
            send(assignment, now, effects);
        }
        builder.givenUp().forEach(entry -> failures.expired(entry, now, effects));
        wakeup.at(Math.min(planner.wakeNs(), expiry.nextNs(now)), now);
    }

    /** Strict requests came lately, or still wait. */
    private boolean hasStrictTraffic(final long now) {
        return now - lastStrictNs < STRICT_MEMORY_NS || queue.waiting(RequestClass.STRICT) > 0;
    }

    private void send(final BatchBuilder.Assignment assignment, final long now, final Effects effects) {
        final BatchWorker worker = assignment.worker();
        final Batch batch = new Batch(assignment.entries(), assignment.requestClass(), now);
        inFlight.give(worker, batch);
        effects.flush(worker);
        guard.run(
                "sending",
                () -> {
                    batch.entries.forEach(entry -> entry.job.setScheduled());
                    sharing.begins(worker, batch, now);
                    sharing.sent(worker, batch, now);
                });
    }

    /** Every event ends so: what this model says to others is what is true now. */
    void settle(final Effects effects) {
        final long now = clock.getAsLong();
        guard.run("settling", () -> sharing.settle(now, effects));
        telemetry.publish(queue, inFlight.requests(), inFlight.batches(), planner.threshold(), now);
    }
}
