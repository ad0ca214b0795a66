package org.shunter.torchserve.dispatch;

import java.util.ArrayList;
import java.util.List;
import org.shunter.torchserve.forming.Deadlines;
import org.shunter.torchserve.forming.RequestClass;
import org.shunter.torchserve.page.Commands;
import org.shunter.torchserve.queue.Batch;
import org.shunter.torchserve.queue.BatchWorker;
import org.shunter.torchserve.queue.Entry;
import org.shunter.torchserve.queue.RequestQueue;

/**
 * The batches of one decision while they are put together. It takes requests out of the queue, the
 * most urgent first, and no more into a batch than can be in time. Guarded by its dispatcher's lock.
 */
final class BatchBuilder {
    /** A batch for a worker. */
    record Assignment(BatchWorker worker, RequestClass requestClass, List<Entry> entries) {}

    private final Object lock;
    private final RequestQueue queue;
    private final CurrentWorkers current;
    private final Forecast forecast;
    private final Commands commands;
    private final List<Assignment> assignments = new ArrayList<>();
    private final List<Entry> givenUp = new ArrayList<>();
    private long now;
    private long bestEffortServedNs;

    BatchBuilder(
            final Object lock,
            final RequestQueue queue,
            final CurrentWorkers current,
            final Forecast forecast,
            final Commands commands) {
        this.lock = lock;
        this.queue = queue;
        this.current = current;
        this.forecast = forecast;
        this.commands = commands;
    }

    void begin(final long nowNs) {
        assert Thread.holdsLock(lock);
        assignments.clear();
        givenUp.clear();
        now = nowNs;
    }

    List<Assignment> assignments() {
        assert Thread.holdsLock(lock);
        return assignments;
    }

    /** Requests that cannot be served in time together with the others. */
    List<Entry> givenUp() {
        return givenUp;
    }

    /** When best effort was sent or, in a batch of its own, has ended last. */
    long bestEffortServedNs() {
        return bestEffortServedNs;
    }

    /** A batch runs no more. */
    void ended(final Batch batch, final long nowNs) {
        assert Thread.holdsLock(lock);
        if (batch.requestClass == RequestClass.BEST_EFFORT) {
            bestEffortServedNs = Math.max(bestEffortServedNs, nowNs); // another may have been sent
        }
    }

    boolean has(final BatchWorker worker) {
        return sizeFor(worker) > 0;
    }

    private int sizeFor(final BatchWorker worker) {
        for (final Assignment assignment : assignments) {
            if (assignment.worker() == worker) {
                return assignment.entries().size();
            }
        }
        return 0;
    }

    /** Time until a worker is free, what it is given here included. */
    long takenNs(final BatchWorker worker) {
        final int size = worker.inFlight.isEmpty() ? sizeFor(worker) : 0;
        return size > 0 ? forecast.batchNs(worker, size) : forecast.busyNs(worker, now);
    }

    /** Give a worker one request in a batch of its own. */
    void assignAlone(final BatchWorker worker, final Entry entry) {
        assert Thread.holdsLock(lock);
        queue.remove(entry, Entry.Stage.SENT);
        ship(worker, entry.requestClass, new ArrayList<>(List.of(entry)));
    }

    /** Give a worker the next requests of a class, as many of them as it can serve in time. */
    void assignNext(
            final BatchWorker worker,
            final RequestClass requestClass,
            final int size,
            final int cap) {
        int taken = size;
        int room = cap;
        final Entry head = queue.peek(requestClass);
        if (head == null) {
            return; // given up for the sake of a batch before
        }
        if (head.deadlineNs != Entry.NEVER && forecast.knows(worker)) {
            taken = fitDeadlines(worker, requestClass, size, cap);
            final long slackNs = queue.peek(requestClass).deadlineNs - now;
            final long fixedNs = forecast.fixedNs(worker) + forecast.cautionNs(worker);
            room = (int) Math.min(cap, forecast.sizeAdding(worker, slackNs - fixedNs));
        }
        final List<Entry> entries = new ArrayList<>(taken);
        queue.take(requestClass, taken, entries);
        if (commands.mixClasses && entries.size() < room) {
            final RequestClass other =
                    requestClass == RequestClass.STRICT
                            ? RequestClass.BEST_EFFORT
                            : RequestClass.STRICT;
            if (current.serves(worker, other)) {
                // Best effort adds no more to strict requests than in a batch of its own.
                final int most = Math.min(room, current.cap(worker, RequestClass.BEST_EFFORT));
                if (most > entries.size()) {
                    queue.take(other, most - entries.size(), entries);
                }
            }
        }
        ship(worker, requestClass, entries);
    }

    private int fitDeadlines(
            final BatchWorker worker, final RequestClass requestClass, final int size, final int cap) {
        final long fixed = forecast.fixedNs(worker) + forecast.cautionNs(worker);
        final long perRequest = forecast.perRequestNs(worker);
        final long startNs = now + forecast.busyNs(worker, now);
        final long slackNs = queue.peek(requestClass).deadlineNs - startNs;
        if (slackNs >= fixed + size * perRequest) {
            return size;
        }
        final int waiting = queue.size(requestClass);
        final long nextFreeNs = nextFreeNs(worker, requestClass);
        final int limit = nextFreeNs == 0 ? 1 : (int) Math.min(waiting, 2L * cap + 1);
        final long[] slacks = queue.firstDeadlines(requestClass, limit);
        for (int i = 0; i < slacks.length; i++) {
            slacks[i] = slacks[i] == Entry.NEVER ? Entry.NEVER : slacks[i] - startNs;
        }
        final Deadlines.Cut cut =
                Deadlines.fit(
                        slacks, waiting, Math.min(size, waiting), cap, fixed, perRequest, nextFreeNs);
        queue.giveUp(requestClass, cut.skip(), givenUp);
        return cut.take();
    }

    /** Time until another worker can take requests of a class; never 0 for one that is overdue. */
    private long nextFreeNs(final BatchWorker except, final RequestClass requestClass) {
        long soonest = Entry.NEVER;
        for (final BatchWorker worker : current.workers()) {
            if (worker != except && current.isReadyFor(worker, requestClass) && forecast.knows(worker)) {
                final boolean idle = worker.inFlight.isEmpty() && !has(worker);
                soonest = Math.min(soonest, idle ? 0 : Math.max(1, takenNs(worker)));
            }
        }
        return soonest;
    }

    private void ship(
            final BatchWorker worker, final RequestClass requestClass, final List<Entry> entries) {
        final boolean mixed = entries.get(entries.size() - 1).requestClass != requestClass;
        if (mixed || requestClass == RequestClass.BEST_EFFORT) {
            bestEffortServedNs = now;
        }
        assignments.add(new Assignment(worker, requestClass, entries));
    }
}
