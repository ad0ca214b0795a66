package org.shunter.torchserve;

import java.util.ArrayList;
import java.util.List;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Decides, for one model, which waiting requests go to which worker and when. Driven by events: a
 * request offered, a reply received, a worker that came or went, a timer. Every event runs under
 * one short lock; writing and answering happen after it is released.
 */
final class Dispatcher {
    private static final Logger LOGGER = LoggerFactory.getLogger(Dispatcher.class);
    private static final long STRICT_MEMORY_NS = 1_000_000_000L;
    private static final int MAX_DEATHS = 2;

    private final String name;
    private final ModelSlot slot;
    private final Telemetry telemetry;
    private final Wakeup wakeup;
    private final RequestQueue queue = new RequestQueue();
    private final Crew crew;
    private final Draft draft;
    private final Plan plan;
    private final Endings endings;
    private final Admission admission;
    private final Presence presence;
    private final StockMetrics.Overhead overhead = new StockMetrics.Overhead();

    private int inFlightRequests;
    private int inFlightBatches;
    private long arrivals;
    private boolean warnedOfYielding;
    private long lastStrictNs = Long.MIN_VALUE / 2;

    Dispatcher(
            final String name,
            final ModelSlot slot,
            final Commands commands,
            final int capacity,
            final long registeredWaitUs,
            final long sloNs,
            final Host host) {
        this.name = name;
        this.slot = slot;
        this.telemetry = new Telemetry(slot);
        this.wakeup = new Wakeup(host.timer(), this::decideAgain);
        final Forecast forecast = new Forecast(commands);
        this.crew = new Crew(commands, forecast, sloNs);
        this.draft = new Draft(queue, crew, forecast, commands);
        this.presence = new Presence(slot, queue, crew, commands, host, this::decideAgain);
        this.plan = new Plan(queue, crew, draft, forecast, commands, presence, registeredWaitUs);
        this.endings = new Endings(name, telemetry);
        this.admission = new Admission(name, capacity, queue, crew, commands, endings);
    }

    /**
     * Take a request.
     *
     * @return null, or why it was not taken
     */
    Refusal offer(final Entry entry) {
        final Effects effects = new Effects();
        synchronized (this) {
            telemetry.arrived(entry.requestClass);
            if (entry.place == Entry.Place.DONE) {
                return null; // the client hung up in the meantime
            }
            final Refusal refusal = admission.refusalOf(entry, effects);
            if (refusal != null) {
                entry.place = Entry.Place.DONE; // its closing connection is not a client that left
                telemetry.rejected(entry);
                return refusal;
            }
            plan.settle(entry.arrivalNs, arrivals);
            arrivals++;
            if (entry.requestClass == RequestClass.STRICT) {
                lastStrictNs = entry.arrivalNs;
            }
            queue.add(entry);
            if (entry.requestClass == RequestClass.STRICT) {
                presence.announce();
                warnOfYielding();
            }
            decide(entry.arrivalNs, effects);
        }
        effects.run();
        return null;
    }

    private void warnOfYielding() {
        if (!warnedOfYielding && crew.yields()) {
            warnedOfYielding = true;
            LOGGER.warn(
                    "A strict request for {}, all of whose workers give way: nobody gives way to it",
                    name);
        }
    }

    /** Count a request that was refused before it became an entry. */
    synchronized void countRejected(final RequestClass requestClass) {
        telemetry.arrived(requestClass);
        telemetry.rejected(requestClass);
    }

    /** The client of a request is gone. */
    void abandon(final Entry entry) {
        final Effects effects = new Effects();
        synchronized (this) {
            if (entry.place == Entry.Place.NEW) {
                entry.place = Entry.Place.DONE;
                telemetry.abandoned(entry);
            } else if (entry.place == Entry.Place.QUEUED) {
                queue.remove(entry, Entry.Place.DONE);
                telemetry.abandoned(entry);
                settle(effects);
            }
        }
        effects.run();
    }

    /** A worker answered its oldest batch, or a part of it. */
    void onReply(final Worker worker, final Reply reply) {
        final long receivedNs = System.nanoTime();
        final Effects effects = new Effects();
        final Batch batch;
        synchronized (this) {
            batch = worker.inFlight.peekFirst();
            if (batch == null) {
                throw new IllegalStateException("a reply without a batch");
            }
            if (Answers.isPartial(reply)) {
                batch.heardNs = receivedNs;
                batch.entries.forEach(entry -> entry.streamed = true);
            } else {
                complete(worker, batch, reply, receivedNs);
                if (worker.state == WorkerState.DRAINING && worker.inFlight.isEmpty()) {
                    effects.later(worker::end);
                }
                decide(receivedNs, effects);
            }
        }
        effects.run();
        Answers.deliver(batch, reply);
        overhead.report(receivedNs);
    }

    /** Only while its group is current: the words are those of the current generation. */
    private void publishFit(final Worker worker) {
        if (crew.workers().contains(worker)) {
            Telemetry.publishFit(slot, worker.group);
        }
    }

    private void complete(
            final Worker worker, final Batch batch, final Reply reply, final long now) {
        plan.settle(now, arrivals);
        worker.inFlight.pollFirst();
        worker.held = worker.inFlight.size();
        worker.freeSinceNs = now;
        presence.progress(batch, now);
        inFlightBatches--;
        inFlightRequests -= batch.size();
        telemetry.answered(batch, Answers.statuses(batch, reply), now);
        worker.group.batches++;
        worker.group.requests += batch.size();
        final boolean disturbed =
                batch.disturbed
                        || batch.excusedNs > 0
                        || presence.disturbed(worker, batch.startNs, now);
        if (reply.code() == 200 && !batch.entries.get(0).alone() && !disturbed) {
            worker.group.fit.observe(batch.size(), now - batch.startNs);
            publishFit(worker);
        }
        for (final Entry entry : batch.entries) {
            entry.place = Entry.Place.DONE;
        }
        plan.answered(worker, batch.size(), now, arrivals);
        final Batch next = worker.inFlight.peekFirst();
        if (next != null) {
            next.startNs = now;
            next.heardNs = now;
            next.disturbed = presence.disturbed(worker, now, now);
        }
    }

    /** A worker loaded its model. */
    void onReady(final Worker worker) {
        final Effects effects = new Effects();
        synchronized (this) {
            apply(worker, WorkerState.Event.LOADED);
            worker.freeSinceNs = System.nanoTime();
            decide(System.nanoTime(), effects);
        }
        effects.run();
    }

    /**
     * A worker died. What it was running is tried once more, alone; what it had not begun goes back
     * to its place in the queue.
     *
     * @return false when it had ended before
     */
    boolean onLost(final Worker worker, final String cause) {
        final Effects effects = new Effects();
        synchronized (this) {
            if (!apply(worker, WorkerState.Event.LOST)) {
                return false;
            }
            takeBack(worker, true, cause, effects);
            decide(System.nanoTime(), effects);
        }
        effects.run();
        return true;
    }

    private void takeBack(
            final Worker worker, final boolean died, final String cause, final Effects effects) {
        boolean running = died;
        for (final Batch batch : worker.inFlight) {
            inFlightBatches--;
            inFlightRequests -= batch.size();
            for (int i = batch.size() - 1; i >= 0; i--) {
                final Entry entry = batch.entries.get(i);
                entry.deaths += running ? 1 : 0;
                if (entry.deaths >= MAX_DEATHS || entry.streamed) {
                    endings.givenUp(entry, cause, effects);
                } else {
                    telemetry.retried();
                    queue.restore(entry);
                }
            }
            running = false;
        }
        worker.inFlight.clear();
        worker.held = 0;
    }

    /** A worker ends for good; false when it had ended before. */
    boolean onEnd(final Worker worker) {
        final Effects effects = new Effects();
        synchronized (this) {
            if (!apply(worker, WorkerState.Event.END)) {
                return false;
            }
            takeBack(worker, false, "the worker was stopped", effects);
            decide(System.nanoTime(), effects);
        }
        effects.run();
        return true;
    }

    /** Give a worker no more batches; true when it holds none and can end now. */
    boolean drain(final Worker worker) {
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
    synchronized boolean change(final Worker worker, final WorkerState.Event event) {
        return apply(worker, event);
    }

    private boolean apply(final Worker worker, final WorkerState.Event event) {
        final WorkerState next =
                worker.state == WorkerState.STOPPED ? null : worker.state.after(event);
        if (next == null) {
            return false;
        }
        worker.state = next;
        return true;
    }

    /** From now on batches go to these workers; the others finish what they hold. */
    void setWorkers(final List<Worker> current) {
        final Effects effects = new Effects();
        synchronized (this) {
            crew.replaceBy(current);
            if (!current.isEmpty()) {
                admission.workersCame();
            }
            failUnserved(effects);
            decide(System.nanoTime(), effects);
        }
        effects.run();
    }

    /** A class that lost its last worker would wait for ever. */
    private void failUnserved(final Effects effects) {
        for (final RequestClass requestClass : RequestClass.all()) {
            if (!crew.workers().isEmpty() && !crew.hasWorkerFor(requestClass)) {
                final String reason = admission.reasonAgainst(requestClass);
                endings.failed(queue.takeAll(requestClass), 503, reason, effects);
            }
        }
    }

    /** Refuse what comes from now on, with this text; null accepts again. */
    synchronized void refuse(final String reason) {
        admission.refuse(reason);
    }

    /** Answer all that waits with an error. */
    void failWaiting(final int status, final String text) {
        final Effects effects = new Effects();
        synchronized (this) {
            for (final RequestClass requestClass : RequestClass.all()) {
                endings.failed(queue.takeAll(requestClass), status, text, effects);
            }
            settle(effects);
        }
        effects.run();
    }

    /** Read what this object's lock guards; lock nothing else but a slot's words meanwhile. */
    synchronized void read(final Runnable reader) {
        reader.run();
    }

    /** Nothing waits and nothing runs. */
    synchronized boolean isIdle() {
        return queue.size() == 0 && inFlightRequests == 0;
    }

    synchronized int waiting() {
        return queue.size();
    }

    int capacity() {
        return admission.capacity();
    }

    /** Shares of requests with a deadline that met it lately. */
    SloWindow sloWindow() {
        return telemetry.window();
    }

    /** The first worker whose running batch started before that time, or null. */
    synchronized Worker overdue(final List<Worker> candidates, final long beforeNs) {
        for (final Worker worker : candidates) {
            final Batch batch = worker.inFlight.peekFirst();
            if (batch != null && batch.heardNs - beforeNs < 0) {
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
    synchronized void excuse(
            final List<Worker> candidates,
            final long heldSlices,
            final long forNs,
            final long mostNs) {
        for (final Worker worker : candidates) {
            final WorkerGroup.Place place = worker.group.place;
            final Batch batch = worker.inFlight.peekFirst();
            if (batch != null
                    && place.yields()
                    && (place.slices() & heldSlices) != 0
                    && batch.excusedNs < mostNs) {
                batch.excusedNs += forNs;
                batch.heardNs += forNs;
            }
        }
    }

    /** Whether strict requests of this model hold slices. */
    boolean holds() {
        return presence.holds();
    }

    /** Nothing happened to this model, but what it says to others may have to change. */
    void refresh() {
        final Effects effects = new Effects();
        synchronized (this) {
            presence.settle(System.nanoTime(), effects);
        }
        effects.run();
    }

    /** The model's slot goes to another model: later events of this one must not touch it. */
    void detach(final ControlPage page) {
        final Effects effects = new Effects();
        synchronized (this) {
            presence.leave(System.nanoTime(), effects);
            page.release(slot);
        }
        effects.run();
    }

    private void decideAgain() {
        final Effects effects = new Effects();
        synchronized (this) {
            decide(System.nanoTime(), effects);
        }
        effects.run();
    }

    private void decide(final long now, final Effects effects) {
        plan.settle(now, arrivals);
        presence.begin();
        if (queue.size() > 0) {
            expire(now, effects);
            consult(now);
            for (final Draft.Shipment shipment : draft.shipments()) {
                send(shipment, now, effects);
            }
            draft.givenUp().forEach(entry -> endings.expired(entry, now, effects));
            draft.begin(now); // requests would keep their bodies until the next decision
            wakeup.at(Math.min(plan.wakeNs(), expiryNs(now)), now);
        }
        settle(effects);
    }

    /** A fault in a plan costs the rest of that plan, not the answers that are on their way. */
    private void consult(final long now) {
        try {
            plan.next(now, now - lastStrictNs < STRICT_MEMORY_NS);
        } catch (RuntimeException e) {
            LOGGER.error("Planning for {} failed", name, e);
        }
    }

    /** When to look again for what can no longer be answered in time. */
    private long expiryNs(final long now) {
        final long deadlineNs = queue.earliestDeadlineNs();
        final long hopelessNs = deadlineNs == Entry.NEVER ? deadlineNs : deadlineNs - crew.leastNs();
        return hopelessNs > now ? hopelessNs : deadlineNs;
    }

    /** Answer what can no longer be answered in time. */
    private void expire(final long now, final Effects effects) {
        if (queue.earliestDeadlineNs() == Entry.NEVER) {
            return;
        }
        final List<Entry> expired = new ArrayList<>();
        for (final RequestClass requestClass : RequestClass.all()) {
            queue.takeExpired(requestClass, now + crew.soonestNs(requestClass, now), expired);
        }
        expired.forEach(entry -> endings.expired(entry, now, effects));
    }

    private void send(final Draft.Shipment shipment, final long now, final Effects effects) {
        final Batch batch = new Batch(shipment.entries(), shipment.requestClass(), now);
        for (final Entry entry : batch.entries) {
            entry.job.setScheduled();
        }
        inFlightBatches++;
        inFlightRequests += batch.size();
        shipment.worker().enqueue(batch);
        batch.disturbed = presence.disturbed(shipment.worker(), now, now);
        presence.sent(shipment.worker(), batch, now);
        effects.flush(shipment.worker());
    }

    /** Every event ends so: what this model says to others is what is true now. */
    private void settle(final Effects effects) {
        final long now = System.nanoTime();
        presence.settle(now, effects);
        telemetry.publish(queue, inFlightRequests, inFlightBatches, plan.threshold(), now);
    }
}
