package org.shunter.torchserve.dispatch;

import java.util.ArrayList;
import java.util.List;
import org.shunter.torchserve.forming.ReleaseRule;
import org.shunter.torchserve.forming.RequestClass;
import org.shunter.torchserve.queue.BatchWorker;
import org.shunter.torchserve.queue.Entry;
import org.shunter.torchserve.queue.RequestQueue;

/**
 * Shares out the waiting requests of a class among the workers that are free, and those that soon
 * will be. Guarded by its dispatcher's lock.
 */
final class BatchSplit {
    /** How long a worker that is late is waited for. */
    private static final long LATE_NS = 1_000_000;

    private final Object lock;
    private final RequestQueue queue;
    private final CurrentWorkers current;
    private final BatchBuilder builder;
    private final Forecast forecast;
    private final SliceSharing sharing;
    private long now;
    private long wakeNs;

    BatchSplit(
            final Object lock,
            final RequestQueue queue,
            final CurrentWorkers current,
            final BatchBuilder builder,
            final Forecast forecast,
            final SliceSharing sharing) {
        this.lock = lock;
        this.queue = queue;
        this.current = current;
        this.builder = builder;
        this.forecast = forecast;
        this.sharing = sharing;
    }

    /**
     * Split what waits over the free workers, the preferred groups first.
     *
     * @param shares workers that are busy may get a share too; false: full batches are waited for
     * @return when to look again if nothing happens, or {@link Entry#NEVER}
     */
    long fill(
            final List<BatchWorker> free,
            final RequestClass requestClass,
            final long nowNs,
            final boolean shares) {
        assert Thread.holdsLock(lock);
        now = nowNs;
        wakeNs = Entry.NEVER;
        final List<BatchWorker> available = new ArrayList<>(free);
        int from = 0;
        while (from < available.size() && queue.size(requestClass) > 0) {
            final long tier = current.preference(available.get(from), requestClass);
            int to = from + 1;
            while (to < available.size() && current.preference(available.get(to), requestClass) == tier) {
                to++;
            }
            fillTier(requestClass, available.subList(from, to), shares);
            from = to;
        }
        return wakeNs;
    }

    private void fillTier(
            final RequestClass requestClass, final List<BatchWorker> tier, final boolean shares) {
        final List<BatchWorker> helpers = new ArrayList<>(tier);
        final boolean nextIsLong =
                requestClass == RequestClass.STRICT
                        && queue.size(RequestClass.BEST_EFFORT) > 0
                        && tier.stream().allMatch(w -> current.serves(w, RequestClass.BEST_EFFORT));
        boolean known = true;
        for (final BatchWorker worker : tier) {
            known &= forecast.knows(worker);
        }
        if (known && (shares || nextIsLong)) {
            addBusy(helpers, requestClass, tier);
        }
        known &= helpers.size() > 1;
        final boolean isUrgent = queue.peek(requestClass).deadlineNs != Entry.NEVER;
        final int[] caps = new int[helpers.size()];
        final long[] fixed = new long[caps.length];
        final long[] perRequest = new long[caps.length];
        for (int i = 0; i < caps.length; i++) {
            final BatchWorker worker = helpers.get(i);
            caps[i] = current.cap(worker, requestClass);
            fixed[i] = forecast.busyNs(worker, now) + worker.waitNs + forecast.fixedNs(worker);
            if (isUrgent && i >= tier.size()) { // it may end later than predicted
                fixed[i] += forecast.cautionNs(worker);
            }
            perRequest[i] = forecast.perRequestNs(worker);
        }
        final int queued = queue.size(requestClass);
        final int[] sizes =
                known
                        ? ReleaseRule.splitByLatency(queued, caps, fixed, perRequest)
                        : ReleaseRule.split(queued, caps);
        for (int i = 0; i < tier.size(); i++) {
            if (sizes[i] > 0) {
                final BatchWorker worker = tier.get(i);
                final boolean spread =
                        requestClass == RequestClass.BEST_EFFORT && sizes[i] == caps[i];
                final int size = spread ? staggered(worker, sizes[i]) : sizes[i];
                builder.assignNext(worker, requestClass, size, caps[i]);
            }
        }
        for (int i = tier.size(); i < sizes.length; i++) {
            if (sizes[i] > 0) { // if it is not free by then, the others do not wait for it
                wakeNs = Math.min(wakeNs, now + forecast.busyNs(helpers.get(i), now) + LATE_NS);
            }
        }
    }

    /**
     * Workers that will be free soon take their share too, so that all end together: else the
     * clients of a large batch, which come back at once, stay the large batch of that worker while
     * another one runs small ones; and with best effort waiting they would begin another long batch
     * just when strict requests could use them.
     */
    private void addBusy(
            final List<BatchWorker> helpers,
            final RequestClass requestClass,
            final List<BatchWorker> tier) {
        for (final BatchWorker worker : current.workers()) {
            if (current.isReadyFor(worker, requestClass)
                    && !sharing.takesTurns(worker, requestClass)
                    && worker.room == null // it may have to wait for other models
                    && worker.inFlight.size() == 1
                    && forecast.knows(worker)
                    && forecast.busyNs(worker, now) > 0
                    && !builder.has(worker)
                    && hasGroup(tier, worker.group.index)) {
                helpers.add(worker);
            }
        }
    }

    /**
     * For a free worker of another group that is predicted to be slower would never run again, and a
     * wrong prediction never be noticed.
     */
    private static boolean hasGroup(final List<BatchWorker> workers, final int group) {
        for (final BatchWorker worker : workers) {
            if (worker.group.index == group) {
                return true;
            }
        }
        return false;
    }

    /** With strict traffic, best-effort batches of several workers end one after the other. */
    private int staggered(final BatchWorker worker, final int cap) {
        if (!current.hasStrictTraffic()
                || !current.serves(worker, RequestClass.STRICT)
                || !forecast.knows(worker)) {
            return cap;
        }
        final long[] busyNs =
                current.workers().stream()
                        .filter(other -> other != worker)
                        .filter(other -> current.isReadyFor(other, RequestClass.STRICT))
                        .mapToLong(builder::takenNs)
                        .filter(ns -> ns > 0)
                        .toArray();
        return ReleaseRule.staggeredSize(
                cap, forecast.fixedNs(worker), forecast.perRequestNs(worker), busyNs);
    }
}
