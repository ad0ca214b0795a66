package org.shunter.torchserve.dispatch;

import java.util.ArrayList;
import java.util.List;
import org.shunter.torchserve.forming.Deadlines;
import org.shunter.torchserve.forming.RequestClass;
import org.shunter.torchserve.page.Commands;
import org.shunter.torchserve.preemption.PoolRoom;
import org.shunter.torchserve.queue.Batch;
import org.shunter.torchserve.queue.BatchWorker;
import org.shunter.torchserve.queue.Entry;
import org.shunter.torchserve.queue.WorkerState;

/**
 * The workers that a model's batches go to now: which classes each takes, how large its batches may
 * get, and how soon they can answer. Guarded by its dispatcher's lock.
 */
final class CurrentWorkers {
    private final List<BatchWorker> workers = new ArrayList<>();
    private final Commands commands;
    private final Forecast forecast;
    private final long sloNs;
    private final Object lock;
    private boolean strictTraffic;
    /** Classes of which more come than can be served, beside other models of the pool. */
    private final boolean[] floods = new boolean[RequestClass.COUNT];

    CurrentWorkers(final Object lock, final Commands commands, final Forecast forecast, final long sloNs) {
        this.lock = lock;
        this.commands = commands;
        this.forecast = forecast;
        this.sloNs = sloNs;
    }

    /** All of them, ready or not. */
    List<BatchWorker> workers() {
        assert Thread.holdsLock(lock);
        return workers;
    }

    /** From now on these. */
    void replaceBy(final List<? extends BatchWorker> current) {
        assert Thread.holdsLock(lock);
        workers.clear();
        workers.addAll(current);
    }

    /** Whether there are workers, and all of them stand still for strict work. */
    boolean yields() {
        assert Thread.holdsLock(lock);
        for (final BatchWorker worker : workers) {
            if (!worker.group.place.yields()) {
                return false;
            }
        }
        return !workers.isEmpty();
    }

    /** Whether strict requests came lately. */
    boolean hasStrictTraffic() {
        return strictTraffic;
    }

    void setStrictTraffic(final boolean now) {
        assert Thread.holdsLock(lock);
        strictTraffic = now;
    }

    void setFloods(final RequestClass requestClass, final boolean now) {
        assert Thread.holdsLock(lock);
        floods[requestClass.ordinal()] = now;
    }

    /** Whether a worker, ready or not, takes this class. */
    boolean hasWorkerFor(final RequestClass requestClass) {
        assert Thread.holdsLock(lock);
        for (final BatchWorker worker : workers) {
            if (serves(worker, requestClass)) {
                return true;
            }
        }
        return false;
    }

    boolean serves(final BatchWorker worker, final RequestClass requestClass) {
        return worker.group.config().classes().contains(requestClass)
                && commands.weight(worker.group.index, requestClass) > 0;
    }

    /** Whether it is loaded and takes this class. */
    boolean isReadyFor(final BatchWorker worker, final RequestClass requestClass) {
        return worker.state == WorkerState.READY && serves(worker, requestClass);
    }

    /** Whether a worker in another process is ready for the class, too. */
    private boolean isInSeveral(final BatchWorker worker, final RequestClass requestClass) {
        for (final BatchWorker other : workers) {
            if (other.room != worker.room && isReadyFor(other, requestClass)) {
                return true;
            }
        }
        return false;
    }

    /**
     * Until when a class will be served without one process of the pool: for ever, if another one is
     * free; as long as a busy one does not seem to hang; until now, if there is none.
     */
    long servedWithoutNs(
            final PoolRoom room,
            final List<BatchWorker> free,
            final RequestClass requestClass,
            final long nowNs) {
        long untilNs = nowNs;
        for (final BatchWorker worker : workers) {
            if (worker.room == room || !isReadyFor(worker, requestClass)) {
                continue;
            }
            if (free.contains(worker)) {
                return Entry.NEVER;
            }
            untilNs = Math.max(untilNs, forecast.hangsNs(worker, nowNs));
        }
        return untilNs;
    }

    /** Workers with a lower number are filled first. */
    long preference(final BatchWorker worker, final RequestClass requestClass) {
        return commands.preference(worker.group.index, requestClass);
    }

    /**
     * Largest batch of a class for a worker: its cap, scaled by the group's weight. The requests of
     * a best-effort batch add at most half of the SLO of strict ones that may have to wait for it;
     * without an SLO, at most what a request takes that runs alone. So it is beside other models
     * in a pool of one process if more requests come than can be served.
     */
    int cap(final BatchWorker worker, final RequestClass requestClass) {
        assert Thread.holdsLock(lock);
        long cap = worker.cap();
        cap = Math.min(cap, cap * commands.weight(worker.group.index, requestClass) / 1000);
        if (requestClass == RequestClass.BEST_EFFORT
                && strictTraffic
                && serves(worker, RequestClass.STRICT)) {
            final long mostNs = sloNs > 0 ? sloNs / 2 : forecast.batchNs(worker, 1);
            cap = Math.min(cap, forecast.sizeAdding(worker, mostNs));
        }
        if (floods(worker, requestClass) && !isInSeveral(worker, requestClass)) {
            cap = Math.min(cap, forecast.sizeAdding(worker, forecast.batchNs(worker, 1)));
        }
        return (int) Math.max(1, cap);
    }

    /** Whether more requests of a class come than can be served, beside other models of its pool. */
    boolean floods(final BatchWorker worker, final RequestClass requestClass) {
        return worker.room != null && floods[requestClass.ordinal()];
    }

    /**
     * Shortest predicted time in which a request of a class can be answered. 0 while a worker is
     * free: then it runs, however bad the prediction is, so that a wrong one is noticed.
     */
    long soonestNs(final RequestClass requestClass, final long nowNs) {
        long soonest = Entry.NEVER;
        for (final BatchWorker worker : workers) {
            if (isReadyFor(worker, requestClass)) {
                final long busyNs = forecast.busyNs(worker, nowNs);
                final long lastsNs = worker.inFlight.isEmpty() ? 0 : forecast.batchNs(worker, 1);
                soonest = Math.min(soonest, busyNs + lastsNs);
            }
        }
        return soonest == Entry.NEVER ? 0 : soonest;
    }

    /** Predicted time of all batches that a worker holds. */
    long workNs(final BatchWorker worker) {
        long workNs = 0;
        for (final Batch batch : worker.inFlight) {
            workNs += forecast.batchNs(worker, batch.size());
        }
        return workNs;
    }

    /** Shortest predicted latency of a request that runs alone. */
    long leastNs() {
        long least = Entry.NEVER;
        for (final BatchWorker worker : workers) {
            if (worker.state == WorkerState.READY) {
                least = Math.min(least, forecast.batchNs(worker, 1));
            }
        }
        return least == Entry.NEVER ? 0 : least;
    }

    /**
     * Predicted time until a request that comes now is answered; 0 when nothing is known.
     *
     * @param ahead requests that wait and go before it
     */
    long predictedAnswerNs(final RequestClass requestClass, final long ahead, final long nowNs) {
        long capacity = 0;
        double perNs = 0;
        boolean known = true;
        boolean free = false; // one that is overdue is not
        long busyNs = Entry.NEVER;
        for (final BatchWorker worker : workers) {
            if (isReadyFor(worker, requestClass)) {
                final int cap = cap(worker, requestClass);
                capacity += cap;
                perNs += (double) cap / Math.max(1, forecast.batchNs(worker, cap));
                busyNs = Math.min(busyNs, forecast.busyNs(worker, nowNs));
                known &= forecast.knows(worker);
                free |= worker.inFlight.isEmpty();
            }
        }
        if (capacity == 0 || !known || free && ahead == 0) {
            return 0;
        }
        final long roundNs = (long) (capacity / perNs);
        final long waitNs = Deadlines.predictedWaitNs(ahead, capacity, roundNs, busyNs);
        return waitNs + shortestBatchNs(requestClass, (int) (ahead % capacity) + 1);
    }

    /** Latency of the worker that is fastest for that many requests, or for its cap. */
    private long shortestBatchNs(final RequestClass requestClass, final int size) {
        long shortest = Entry.NEVER;
        for (final BatchWorker worker : workers) {
            if (isReadyFor(worker, requestClass)) {
                final int own = Math.min(size, cap(worker, requestClass));
                shortest = Math.min(shortest, forecast.batchNs(worker, own));
            }
        }
        return shortest == Entry.NEVER ? 0 : shortest;
    }
}
