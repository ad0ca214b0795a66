package org.shunter.torchserve.dispatch;

import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import org.shunter.torchserve.forming.ReleaseRule;
import org.shunter.torchserve.forming.RequestClass;
import org.shunter.torchserve.page.Commands;
import org.shunter.torchserve.queue.Batch;
import org.shunter.torchserve.queue.BatchWorker;
import org.shunter.torchserve.queue.Entry;
import org.shunter.torchserve.queue.RequestQueue;

/**
 * Decides when waiting requests go to which workers, by {@link ReleaseRule} and the numbers of the
 * controller; the batches are put together in a {@link BatchBuilder}. Guarded by its dispatcher's
 * lock.
 */
final class BatchPlanner {
    /** Batches that take longer are not worth to be queued behind: the hop between two is short. */
    private static final long LONGEST_TO_QUEUE_BEHIND_NS = 5_000_000;

    private final Object lock;
    private final RequestQueue queue;
    private final CurrentWorkers current;
    private final BatchBuilder builder;
    private final Commands commands;
    private final List<BatchWorker> free = new ArrayList<>();
    private final Forecast forecast;
    private final SliceSharing sharing;
    private final DeliberateWait deliberateWait;
    private final BatchSplit split;
    private long now;
    private double threshold;
    /** Best effort is due but no worker is free: the next one that gets free is for it. */
    private boolean bestEffortWaits;

    private long wakeNs;

    BatchPlanner(
            final Object lock,
            final RequestQueue queue,
            final CurrentWorkers current,
            final BatchBuilder builder,
            final Forecast forecast,
            final Commands commands,
            final SliceSharing sharing,
            final DeliberateWait deliberateWait) {
        this.lock = lock;
        this.queue = queue;
        this.current = current;
        this.builder = builder;
        this.forecast = forecast;
        this.commands = commands;
        this.sharing = sharing;
        this.deliberateWait = deliberateWait;
        this.split = new BatchSplit(lock, queue, current, builder, forecast, sharing);
    }

    /** Decide; the results are in the batch builder and in {@link #wakeNs} until the next call. */
    void next(final long nowNs, final boolean hasStrictTraffic, final boolean wasFull) {
        assert Thread.holdsLock(lock);
        builder.begin(nowNs);
        wakeNs = Entry.NEVER;
        now = nowNs;
        threshold = deliberateWait.threshold();
        current.setStrictTraffic(hasStrictTraffic);
        for (final RequestClass each : RequestClass.all()) {
            current.setFloods(each, wasFull && sharing.pool.othersAsk(each, now));
        }
        try {
            release();
        } finally {
            free.clear(); // a worker that ended is not kept
        }
    }

    private void release() {
        if (bestEffortIsDue()) {
            releaseDue();
        }
        bestEffortWaits = bestEffortIsDue();
        for (final RequestClass requestClass : RequestClass.all()) {
            releaseAlone(requestClass);
            release(requestClass);
        }
    }

    /** When to look again if nothing happens, or {@link Entry#NEVER}. */
    long wakeNs() {
        assert Thread.holdsLock(lock);
        return wakeNs;
    }

    /** Time passes; before each arrival is counted. */
    void settle(final long nowNs, final long arrivals) {
        assert Thread.holdsLock(lock);
        deliberateWait.settle(nowNs, arrivals);
    }

    /** A worker answered a batch; what it holds still is in its {@code inFlight}. */
    void answered(final BatchWorker worker, final Batch batch, final long nowNs, final long arrivals) {
        builder.ended(batch, nowNs);
        final Batch ahead = worker.inFlight.peekFirst();
        final long waiting = queue.size() + (ahead == null ? 0 : ahead.size());
        deliberateWait.answered(nowNs, batch.size(), waiting, arrivals, forecast.worthNs(worker));
    }

    /** Requests worth a batch, per worker. */
    double threshold() {
        assert Thread.holdsLock(lock);
        return deliberateWait.threshold();
    }

    /**
     * One batch of best effort goes first if none began or ended within the ageing interval, so
     * that it cannot starve. Or ended: where one takes longer than the interval, the next would be
     * due as it ends, and strict requests would starve instead.
     */
    private boolean bestEffortIsDue() {
        final Entry alone = queue.peekAlone(RequestClass.BEST_EFFORT);
        final long oldest =
                Math.min(
                        queue.oldestArrivalNs(RequestClass.BEST_EFFORT),
                        alone == null ? Entry.NEVER : alone.arrivalNs);
        return commands.ageingUs > 0
                && oldest != Entry.NEVER
                && now - Math.max(oldest, builder.bestEffortServedNs()) >= commands.ageingUs * 1000;
    }

    private void releaseAlone(final RequestClass requestClass) {
        for (Entry entry = queue.peekAlone(requestClass);
                entry != null;
                entry = queue.peekAlone(requestClass)) {
            collectFree(requestClass);
            if (free.isEmpty()) {
                return;
            }
            builder.assignAlone(free.get(0), entry);
        }
    }

    private void releaseDue() {
        collectFree(RequestClass.BEST_EFFORT);
        if (free.isEmpty()) {
            return;
        }
        final Entry alone = queue.peekAlone(RequestClass.BEST_EFFORT);
        if (alone != null) {
            builder.assignAlone(free.get(0), alone);
        } else {
            final int cap = current.cap(free.get(0), RequestClass.BEST_EFFORT);
            builder.assignNext(free.get(0), RequestClass.BEST_EFFORT, cap, cap);
        }
    }

    private void release(final RequestClass requestClass) {
        int before = Integer.MAX_VALUE;
        int queued = queue.size(requestClass);
        // Again while it helps: a batch that was cut for a deadline leaves requests behind.
        while (queued > 0 && queued < before) {
            collectFree(requestClass); // which takes a turn, so not without a request
            if (free.isEmpty()) {
                sendAhead(requestClass);
                return;
            }
            if (!releaseToFree(requestClass, queued)) {
                return;
            }
            before = queued;
            queued = queue.size(requestClass);
        }
    }

    private boolean releaseToFree(final RequestClass requestClass, final int queued) {
        if (deliberateWait.wantsCompany()) {
            keepFillable(requestClass, queued);
        }
        long total = 0;
        long freeSinceNs = Long.MAX_VALUE;
        for (final BatchWorker worker : free) {
            total += current.cap(worker, requestClass);
            freeSinceNs = Math.min(freeSinceNs, worker.freeSinceNs);
        }
        final int capacity = (int) Math.min(Integer.MAX_VALUE, total);
        final boolean othersWait = queue.size() > queue.size(requestClass);
        final double wanted = deliberateWait.wanted(now, free.size(), freeSinceNs, othersWait);
        // What follows answers is waited for after the answer, however long the others have waited.
        final long fromNs = deliberateWait.adapts() ? freeSinceNs : Long.MIN_VALUE;
        final long oldestNs = Math.max(fromNs, queue.oldestArrivalNs(requestClass));
        final long heldUs = Math.max(0, now - oldestNs) / 1000;
        final long deadlineNs = queue.peek(requestClass).deadlineNs;
        final long slackUs =
                deadlineNs == Entry.NEVER ? ReleaseRule.NO_SLACK : (deadlineNs - now) / 1000;
        final BatchWorker next = free.get(0);
        final int size = Math.min((queued + free.size() - 1) / free.size(), current.cap(next, requestClass));
        final long predictedUs = forecast.batchNs(next, size) / 1000;
        final long marginUs = forecast.cautionNs(next) / 1000;
        final long maxWaitUs = deliberateWait.maxWaitUs();
        if (ReleaseRule.shouldRelease(
                queued, heldUs, slackUs, wanted, maxWaitUs, capacity, predictedUs, marginUs)) {
            wakeNs = Math.min(wakeNs, split.fill(free, requestClass, now, deliberateWait.adapts()));
            return true;
        }
        final long wakeUs =
                ReleaseRule.wakeAfterUs(heldUs, slackUs, maxWaitUs, predictedUs, marginUs);
        wakeNs = Math.min(wakeNs, Math.min(now + wakeUs * 1000, deliberateWait.held()));
        return false;
    }

    /** A worker that waits for a full batch does not share it with one that is free as well. */
    private void keepFillable(final RequestClass requestClass, final int queued) {
        long left = queued;
        int full = 0;
        while (full < free.size() && left >= current.cap(free.get(full), requestClass)) {
            left -= current.cap(free.get(full), requestClass);
            full++;
        }
        free.subList(Math.min(free.size(), Math.max(1, full)), free.size()).clear();
    }

    /** Every worker that may take this class is busy: hand the next batch to one of them early. */
    private void sendAhead(final RequestClass requestClass) {
        while (queue.size(requestClass) > 0) {
            BatchWorker soonest = null;
            for (final BatchWorker worker : current.workers()) {
                if (mayTakeAhead(worker, requestClass)
                        && (soonest == null || startNs(worker) < startNs(soonest))) {
                    soonest = worker;
                }
            }
            if (soonest == null) {
                return;
            }
            final int cap = current.cap(soonest, requestClass);
            final int size = Math.min(cap, queue.size(requestClass));
            builder.assignNext(soonest, requestClass, size, cap);
        }
    }

    private boolean mayTakeAhead(final BatchWorker worker, final RequestClass requestClass) {
        if (!current.isReadyFor(worker, requestClass)
                || builder.has(worker)
                || sharing.takesTurns(worker, requestClass)) {
            return false;
        }
        for (int c = 0; c <= requestClass.ordinal(); c++) {
            final RequestClass each = RequestClass.all()[c];
            if (queue.peekAlone(each) != null && current.serves(worker, each)) {
                return false; // that request needs a worker that holds nothing
            }
        }
        if (bestEffortWaits && current.serves(worker, RequestClass.BEST_EFFORT)) {
            return false; // strict behind strict for ever would starve it
        }
        final Batch running = worker.inFlight.peekFirst();
        return running != null
                && !running.entries.get(0).alone()
                && forecast.batchNs(worker, running.size()) < LONGEST_TO_QUEUE_BEHIND_NS
                && !forecast.isLate(worker, running, now) // it may hang
                && ReleaseRule.maySendAhead(
                        queue.size(requestClass),
                        threshold,
                        current.cap(worker, requestClass),
                        worker.inFlight.size(),
                        commands.aheadBatches,
                        free.size(),
                        requestClass == RequestClass.STRICT,
                        running.requestClass == RequestClass.STRICT,
                        current.hasStrictTraffic())
                && !current.floods(worker, requestClass) // others would have to wait for both
                && sharing.pool.mayGoAhead(worker); // last, because that takes the room
    }

    private static long startNs(final BatchWorker worker) {
        return worker.inFlight.peekFirst().startNs;
    }

    private void collectFree(final RequestClass requestClass) {
        free.clear();
        for (final BatchWorker worker : current.workers()) {
            if (current.isReadyFor(worker, requestClass)
                    && worker.inFlight.isEmpty()
                    && !builder.has(worker)) {
                free.add(worker);
            }
        }
        if (sharing.pool.isUsed()) {
            wakeNs = Math.min(wakeNs, sharing.pool.choose(free, requestClass, now));
        }
        if (free.size() > 1) {
            free.sort(Comparator.comparingLong(worker -> current.preference(worker, requestClass)));
        }
        if (sharing.isShared()) { // the preferred ask first
            free.removeIf(worker -> !sharing.mayStart(worker, requestClass, now));
        }
    }
}
