package org.shunter.torchserve.dispatch;

import java.util.ArrayList;
import java.util.List;
import org.shunter.torchserve.page.ModelSlot;
import org.shunter.torchserve.page.SliceSet;
import org.shunter.torchserve.queue.Batch;
import org.shunter.torchserve.queue.BatchWorker;
import org.shunter.torchserve.queue.Effects;
import org.shunter.torchserve.queue.Entry;
import org.shunter.torchserve.queue.Loss;
import org.shunter.torchserve.queue.Reply;
import org.shunter.torchserve.queue.RequestQueue;
import org.shunter.torchserve.queue.Telemetry;
import org.shunter.torchserve.queue.WorkerGroup;
import org.shunter.torchserve.queue.WorkerState;

/** The batches that the workers of one model hold. Guarded by its dispatcher's lock. */
final class InFlight {
    private final Object lock;
    private final ModelSlot slot;
    private final RequestQueue queue;
    private final CurrentWorkers current;
    private final BatchPlanner planner;
    private final RequestFailures failures;
    private final SliceSharing sharing;
    private final Telemetry telemetry;
    /** Batches with deadlines that are behind others. */
    private final List<Batch> ahead = new ArrayList<>();
    private int requests;
    private int batches;

    InFlight(
            final Object lock,
            final ModelSlot slot,
            final RequestQueue queue,
            final CurrentWorkers current,
            final BatchPlanner planner,
            final RequestFailures failures,
            final SliceSharing sharing,
            final Telemetry telemetry) {
        this.lock = lock;
        this.slot = slot;
        this.queue = queue;
        this.current = current;
        this.planner = planner;
        this.failures = failures;
        this.sharing = sharing;
        this.telemetry = telemetry;
    }

    int requests() {
        return requests;
    }

    int batches() {
        return batches;
    }

    /** A worker gets a batch; it is written when the lock is released. */
    void give(final BatchWorker worker, final Batch batch) {
        assert Thread.holdsLock(lock);
        batches++;
        requests += batch.size();
        if (!worker.inFlight.isEmpty()) {
            batch.deadlineNs = batch.earliestDeadlineNs();
            if (batch.deadlineNs != Entry.NEVER) {
                ahead.add(batch);
            }
        }
        worker.add(batch);
    }

    /** A batch is not in flight any more. */
    void take(final BatchWorker worker, final Batch batch) {
        assert Thread.holdsLock(lock);
        worker.remove(batch);
        ahead.remove(batch);
        ahead.remove(worker.inFlight.peekFirst()); // which begins now
        batches--;
        for (final Entry entry : batch.entries) {
            if (entry.stage != Entry.Stage.EXPIRED) {
                entry.stage = Entry.Stage.DONE;
                requests--;
            }
        }
    }

    /** Earliest deadline of what was given and has not begun, or {@link Entry#NEVER}. */
    long earliestDeadlineNs() {
        assert Thread.holdsLock(lock);
        long earliest = Entry.NEVER;
        for (final Batch batch : ahead) {
            earliest = Math.min(earliest, batch.deadlineNs);
        }
        return earliest;
    }

    /** Find what did not begin before its deadline; its worker may run it all the same. */
    void takeExpired(final long now, final List<Entry> expired) {
        assert Thread.holdsLock(lock);
        for (final Batch batch : ahead) {
            if (batch.deadlineNs > now) {
                continue;
            }
            for (final Entry entry : batch.entries) {
                if (!entry.isOver() && entry.deadlineNs <= now) {
                    entry.stage = Entry.Stage.EXPIRED;
                    requests--;
                    expired.add(entry);
                }
            }
            batch.deadlineNs = batch.earliestDeadlineNs();
        }
    }

    static void endIfDrained(final BatchWorker worker, final Effects effects) {
        if (worker.state == WorkerState.DRAINING && worker.inFlight.isEmpty()) {
            effects.later(worker::end);
        }
    }

    /** Count an answer, and learn from how long it took. */
    void answered(
            final BatchWorker worker,
            final Batch batch,
            final Reply reply,
            final int[] statuses,
            final long arrivals,
            final long now) {
        planner.settle(now, arrivals);
        worker.freeSinceNs = now;
        sharing.pool.answered(worker, batch, now);
        sharing.progress(batch, now);
        telemetry.answered(batch, worker.group, statuses, now);
        worker.group.batches++;
        worker.group.requests += batch.size();
        if (reply.code() == 200
                && !batch.entries.get(0).alone()
                && !sharing.disturbed(worker, batch, now)) {
            worker.group.fit.observe(batch.size(), now - batch.startNs);
            publishFit(worker);
        }
        planner.answered(worker, batch, now, arrivals);
        begin(worker.inFlight.peekFirst(), worker, now);
    }

    /** Only while its group is current: the words are those of the current generation. */
    private void publishFit(final BatchWorker worker) {
        if (current.workers().contains(worker)) {
            Telemetry.publishFit(slot, worker.group);
        }
    }

    /** A worker could start on this batch now. */
    void begin(final Batch next, final BatchWorker worker, final long now) {
        if (next != null) {
            next.startNs = now;
            next.heardNs = now;
            sharing.begins(worker, next, now);
        }
    }

    /**
     * A worker does not answer what it holds. What it was running may be tried once more, alone; what
     * it had not begun goes back to its place in the queue.
     */
    void takeBack(final BatchWorker worker, final Loss loss, final Effects effects) {
        final Batch running = worker.inFlight.peekFirst();
        while (!worker.inFlight.isEmpty()) { // backwards, because what is put back goes in front
            final Batch batch = worker.inFlight.peekLast();
            take(worker, batch);
            final boolean begun = batch == running && batch.sent;
            for (int i = batch.size() - 1; i >= 0; i--) {
                final Entry entry = batch.entries.get(i);
                if (entry.stage == Entry.Stage.EXPIRED) {
                    entry.end();
                    continue;
                }
                entry.deaths += begun && loss.isDeath() ? 1 : 0;
                if (begun && !loss.permitsAnotherRun(entry)) {
                    failures.givenUp(entry, batch, worker.group, loss, effects);
                    continue;
                }
                if (begun && loss.kind() != Loss.Kind.UNBEGUN) { // what only waited never ran
                    telemetry.retried();
                }
                queue.restore(entry);
            }
        }
    }

    /** The first worker whose running inference started before that time, or null. */
    <W extends BatchWorker> W overdue(final List<W> candidates, final long beforeNs) {
        for (final W worker : candidates) {
            final Batch batch = worker.inFlight.peekFirst();
            if (batch != null
                    && batch.heardNs - beforeNs < 0
                    && sharing.pool.wasFirst(worker, beforeNs)
                    && !batch.entries.get(0).describes()) {
                return worker;
            }
        }
        return null;
    }

    /** Those that yield on these slices are not late by that time, up to so much altogether. */
    static void excuse(
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
}
