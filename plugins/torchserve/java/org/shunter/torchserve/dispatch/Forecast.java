package org.shunter.torchserve.dispatch;

import org.shunter.torchserve.forming.LatencyFit;
import org.shunter.torchserve.page.Commands;
import org.shunter.torchserve.queue.Batch;
import org.shunter.torchserve.queue.BatchWorker;

/**
 * Predicted times of one model's workers: fitted to what was seen, the controller's numbers until
 * then. Guarded by its dispatcher's lock.
 */
final class Forecast {
    private static final long HANGS_NS = 1_000_000_000L;

    private final Commands commands;

    Forecast(final Commands commands) {
        this.commands = commands;
    }

    /** The part of a batch's latency that does not depend on its size; 0: nothing is known. */
    long fixedNs(final BatchWorker worker) {
        final LatencyFit fit = worker.group.fit;
        return fit.known() ? (long) fit.fixedNs() : commands.latencyFixedNs;
    }

    /** What one batch less may save, at most; 0: nothing is known. */
    long worthNs(final BatchWorker worker) {
        final LatencyFit fit = worker.group.fit;
        return fit.known() ? fit.worthNs() : commands.latencyFixedNs;
    }

    /** The part for each request. */
    long perRequestNs(final BatchWorker worker) {
        final LatencyFit fit = worker.group.fit;
        return fit.known() ? (long) fit.perRequestNs() : commands.latencyPerRequestNs;
    }

    boolean knows(final BatchWorker worker) {
        return fixedNs(worker) + perRequestNs(worker) > 0;
    }

    long batchNs(final BatchWorker worker, final int size) {
        return fixedNs(worker) + size * perRequestNs(worker);
    }

    /** What is added to a prediction where a deadline is at stake. */
    long cautionNs(final BatchWorker worker) {
        return worker.group.fit.cautionNs() + commands.marginUs * 1000;
    }

    /** Whether a batch runs for longer than it was predicted to; false when nothing is known. */
    boolean isLate(final BatchWorker worker, final Batch running, final long now) {
        return knows(worker) && now - lateNs(worker, running) > 0;
    }

    /** From when on a batch runs for longer than it was predicted to. */
    private long lateNs(final BatchWorker worker, final Batch running) {
        return running.startNs + batchNs(worker, running.size()) + cautionNs(worker);
    }

    /**
     * From when on a worker that is busy, or gets a batch now, counts as one that may hang; now, when
     * nothing is known.
     */
    long hangsNs(final BatchWorker worker, final long now) {
        if (!knows(worker)) {
            return now;
        }
        final Batch running = worker.inFlight.peekFirst();
        final long longestNs = batchNs(worker, worker.cap()) + cautionNs(worker);
        return HANGS_NS + (running == null ? now + longestNs : lateNs(worker, running));
    }

    /** Largest batch whose requests add no more than that to its fixed part; at least 1. */
    long sizeAdding(final BatchWorker worker, final long limitNs) {
        final long perRequest = perRequestNs(worker);
        return perRequest == 0 ? Integer.MAX_VALUE : Math.max(1, limitNs / perRequest);
    }

    /** Time until a worker has answered all that it holds; 0 when it is free or overdue. */
    long busyNs(final BatchWorker worker, final long now) {
        long endNs = Long.MIN_VALUE;
        for (final Batch batch : worker.inFlight) {
            final long startNs = endNs == Long.MIN_VALUE ? batch.startNs : endNs;
            endNs = Math.max(now, startNs + batchNs(worker, batch.size()));
        }
        return endNs == Long.MIN_VALUE ? 0 : endNs - now;
    }
}
