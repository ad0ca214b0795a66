package org.shunter.torchserve.dispatch;

import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import org.shunter.torchserve.forming.RequestClass;
import org.shunter.torchserve.page.Commands;
import org.shunter.torchserve.preemption.PoolRoom;
import org.shunter.torchserve.preemption.RoomTaker;
import org.shunter.torchserve.preemption.Turns;
import org.shunter.torchserve.queue.Batch;
import org.shunter.torchserve.queue.BatchWorker;
import org.shunter.torchserve.queue.Entry;
import org.shunter.torchserve.queue.RequestQueue;

/**
 * The room that one model takes in the processes of the pool. A model whose workers have processes
 * of their own has nothing here, and takes no lock for it. Guarded by its dispatcher's lock.
 */
final class PoolSharing {
    private static final long OTHERS_MEMORY_NS = 10_000_000_000L;
    private static final Comparator<BatchWorker> SOONEST =
            Comparator.comparingLong(worker -> worker.waitNs);

    private final Object lock;
    private final RequestQueue queue;
    private final CurrentWorkers current;
    private final Commands commands;
    private final Runnable decide;
    /** Workers that were given a batch, whether or not they still serve. */
    private final List<BatchWorker> sent;

    private final List<Part> parts = new ArrayList<>();
    private volatile int waiting;

    private record Part(PoolRoom room, RoomTaker taker) {}

    PoolSharing(
            final Object lock,
            final RequestQueue queue,
            final CurrentWorkers current,
            final Commands commands,
            final List<BatchWorker> sent,
            final Runnable decide) {
        this.lock = lock;
        this.queue = queue;
        this.current = current;
        this.commands = commands;
        this.sent = sent;
        this.decide = decide;
    }

    /** Whether any of its workers is in the pool. */
    boolean isUsed() {
        return !parts.isEmpty();
    }

    /** Batches that wait for room; read without the lock. */
    int waiting() {
        return waiting;
    }

    /** Other workers serve. */
    void setWorkers() {
        assert Thread.holdsLock(lock);
        for (final BatchWorker worker : current.workers()) {
            if (worker.room != null) {
                takerOf(worker);
            }
        }
    }

    private RoomTaker takerOf(final BatchWorker worker) {
        for (final Part part : parts) {
            if (part.room == worker.room) {
                return part.taker;
            }
        }
        final RoomTaker taker = worker.room.join(worker.group.place.yields(), decide);
        parts.add(new Part(worker.room, taker));
        return taker;
    }

    /** A decision begins. */
    void begin(final long now) {
        for (final Part part : parts) {
            part.taker.begin(batches(part.room), workNs(part.room), now);
        }
    }

    /** Batches that its workers have in a process. */
    private int batches(final PoolRoom room) {
        int batches = 0;
        for (final BatchWorker worker : sent) {
            batches += worker.room == room ? worker.inFlight.size() : 0;
        }
        return batches;
    }

    /** Predicted time of these batches. */
    private long workNs(final PoolRoom room) {
        long workNs = 0;
        for (final BatchWorker worker : sent) {
            workNs += worker.room == room ? current.workNs(worker) : 0;
        }
        return workNs;
    }

    /**
     * The workers in whose processes the least is before their batches come first; who floods the
     * pool leaves one process to the others, which would wait for its long batches everywhere.
     *
     * @return when to look again, because the worker that serves meanwhile may hang, or {@link
     *     Entry#NEVER}
     */
    long choose(final List<BatchWorker> free, final RequestClass requestClass, final long now) {
        for (final BatchWorker worker : free) {
            worker.waitNs = worker.room == null ? 0 : takerOf(worker).waitNs(requestClass, now);
        }
        free.sort(SOONEST);
        if (free.isEmpty() || !current.floods(free.get(0), requestClass)) {
            return Entry.NEVER;
        }
        final PoolRoom left = free.get(free.size() - 1).room;
        final long untilNs = current.servedWithoutNs(left, free, requestClass, now);
        if (untilNs != Entry.NEVER && untilNs - now <= 0) {
            return Entry.NEVER;
        }
        free.removeIf(worker -> worker.room == left);
        return untilNs;
    }

    /** Whether other models of the pool were asked lately, for a class or for one that goes before it. */
    boolean othersAsk(final RequestClass requestClass, final long now) {
        for (final Part part : parts) {
            if (now - part.taker.othersAskedNs(requestClass) < OTHERS_MEMORY_NS) {
                return true;
            }
        }
        return false;
    }

    /** Whether a worker may be given a batch of a class now; else the dispatcher is called. */
    boolean mayStart(
            final BatchWorker worker,
            final RequestClass requestClass,
            final long oldestNs,
            final long now) {
        return worker.room == null
                || takerOf(worker).take(worker, requestClass, oldestNs, commands.ageingUs * 1000, now);
    }

    /** Whether a worker may be given a batch behind the one that it has. */
    boolean mayGoAhead(final BatchWorker worker) {
        return worker.room == null || takerOf(worker).takeAhead(worker);
    }

    /** A worker answered: its process did not begin that batch before it had ended another. */
    void answered(final BatchWorker worker, final Batch batch, final long now) {
        if (worker.room != null) {
            final long beforeNs = worker.room.endedNs();
            batch.startNs = beforeNs < now ? Math.max(batch.startNs, beforeNs) : batch.startNs;
            takerOf(worker).answered(now);
        }
    }

    /** Whether a worker's first batch was before all others in its process already then. */
    boolean wasFirst(final BatchWorker worker, final long atNs) {
        if (worker.room == null) {
            return true;
        }
        final RoomTaker taker = takerOf(worker);
        return taker.isFirst() && taker.firstSinceNs() - atNs < 0;
    }

    /** An event is over. */
    void settle(final boolean gone, final long now, final Turns.Later later) {
        assert Thread.holdsLock(lock);
        int waits = 0;
        for (int i = parts.size() - 1; i >= 0; i--) {
            final Part part = parts.get(i);
            final int batches = batches(part.room);
            final boolean free = batches == 0 && !gone;
            part.taker.settle(
                    batches,
                    workNs(part.room),
                    free && couldStart(part.room, RequestClass.STRICT),
                    free && couldStart(part.room, RequestClass.BEST_EFFORT),
                    now,
                    later);
            waits += part.taker.waitsFor();
            if (batches == 0 && (gone || !serves(part.room))) {
                parts.remove(i);
            }
        }
        waiting = waits;
    }

    private boolean serves(final PoolRoom room) {
        for (final BatchWorker worker : current.workers()) {
            if (worker.room == room) {
                return true;
            }
        }
        return false;
    }

    /** Whether requests of a class wait that a worker in a process is free for. */
    private boolean couldStart(final PoolRoom room, final RequestClass requestClass) {
        if (queue.waiting(requestClass) > 0) {
            for (final BatchWorker worker : current.workers()) {
                if (worker.room == room
                        && worker.inFlight.isEmpty()
                        && current.isReadyFor(worker, requestClass)) {
                    return true;
                }
            }
        }
        return false;
    }
}
