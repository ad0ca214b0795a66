package org.shunter.torchserve;

import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;

/**
 * Turns the waiting requests and the free workers into batches, by {@link ReleaseRule} and the
 * numbers of the controller. Used by a dispatcher under its lock; it takes requests out of the
 * queue and nothing else.
 */
final class Plan {
    /** How near a deadline may come before its batch leaves. */
    private static final long MARGIN_US = 2000; // timers ring up to a millisecond late

    /** A batch for a worker. */
    record Shipment(Worker worker, RequestClass requestClass, List<Entry> entries) {}

    private final RequestQueue queue;
    private final List<Worker> workers;
    private final Commands commands;
    private final long registeredWaitUs;
    private final List<Shipment> shipments = new ArrayList<>();
    private final List<Worker> free = new ArrayList<>();
    private long now;
    private double threshold;
    private boolean strictTraffic;
    /** Best effort is due but no worker is free: the next one that gets free is for it. */
    private boolean bestEffortWaits;

    private long wakeNs;
    private long lastBestEffortNs;

    Plan(
            final RequestQueue queue,
            final List<Worker> workers,
            final Commands commands,
            final long registeredWaitUs) {
        this.queue = queue;
        this.workers = workers;
        this.commands = commands;
        this.registeredWaitUs = registeredWaitUs;
    }

    /** Decide; the results are in {@link #shipments} and {@link #wakeNs} until the next call. */
    void next(final long nowNs, final double adaptive, final boolean hasStrictTraffic) {
        commands.refresh();
        shipments.clear();
        wakeNs = Entry.NEVER;
        now = nowNs;
        threshold = commands.thresholdFixed > 0 ? commands.thresholdFixed : adaptive;
        strictTraffic = hasStrictTraffic;
        for (final RequestClass requestClass : RequestClass.all()) {
            releaseAlone(requestClass);
        }
        if (bestEffortIsDue()) {
            releaseDue();
        }
        bestEffortWaits = bestEffortIsDue();
        release(RequestClass.STRICT);
        release(RequestClass.BEST_EFFORT);
    }

    List<Shipment> shipments() {
        return shipments;
    }

    /** When to look again if nothing happens, or {@link Entry#NEVER}. */
    long wakeNs() {
        return wakeNs;
    }

    /** The threshold after a batch during whose service that many requests arrived. */
    double adapt(final double value, final long arrived) {
        int ready = 0;
        for (final Worker worker : workers) {
            ready += worker.state == WorkerState.READY ? 1 : 0;
        }
        final double share = (double) arrived / Math.max(1, ready);
        return Threshold.step(value, share, commands.alpha, commands.thresholdCap);
    }

    long predictNs(final int size) {
        return commands.predictNs(size);
    }

    /** One batch of best effort per ageing interval goes first, so that it cannot starve. */
    private boolean bestEffortIsDue() {
        final long oldest = queue.oldestArrivalNs(RequestClass.BEST_EFFORT);
        return commands.ageingUs > 0
                && oldest != Entry.NEVER
                && now - Math.max(oldest, lastBestEffortNs) >= commands.ageingUs * 1000;
    }

    private void releaseAlone(final RequestClass requestClass) {
        for (Entry entry = queue.peekAlone(requestClass);
                entry != null;
                entry = queue.peekAlone(requestClass)) {
            collectFree(requestClass);
            if (free.isEmpty()) {
                return;
            }
            queue.remove(entry, Entry.Place.SENT);
            ship(free.get(0), entry.requestClass, new ArrayList<>(List.of(entry)));
        }
    }

    private void releaseDue() {
        collectFree(RequestClass.BEST_EFFORT);
        if (!free.isEmpty()) {
            final int cap = cap(free.get(0), RequestClass.BEST_EFFORT);
            shipTaken(free.get(0), RequestClass.BEST_EFFORT, cap, cap);
        }
    }

    /** Whether a worker, ready or not, takes this class. */
    boolean hasWorkerFor(final RequestClass requestClass) {
        for (final Worker worker : workers) {
            if (serves(worker, requestClass)) {
                return true;
            }
        }
        return false;
    }

    private void release(final RequestClass requestClass) {
        final int queued = queue.size(requestClass);
        if (queued == 0) {
            return;
        }
        collectFree(requestClass);
        if (!free.isEmpty() && !releaseToFree(requestClass, queued)) {
            return;
        }
        sendAhead(requestClass);
    }

    private boolean releaseToFree(final RequestClass requestClass, final int queued) {
        long total = 0;
        for (final Worker worker : free) {
            total += cap(worker, requestClass);
        }
        final int capacity = (int) Math.min(Integer.MAX_VALUE, total);
        final long waitUs = (now - queue.oldestArrivalNs(requestClass)) / 1000;
        final long deadlineNs = queue.peek(requestClass).deadlineNs;
        final long slackUs =
                deadlineNs == Entry.NEVER ? ReleaseRule.NO_SLACK : (deadlineNs - now) / 1000;
        final long predictedUs = commands.predictNs(Math.min(queued, capacity)) / 1000;
        final long maxWaitUs = Math.min(commands.maxWaitUs, registeredWaitUs);
        if (!ReleaseRule.shouldRelease(
                queued,
                waitUs,
                slackUs,
                freeThreshold(),
                maxWaitUs,
                capacity,
                predictedUs,
                MARGIN_US)) {
            final long wakeUs =
                    ReleaseRule.wakeAfterUs(
                            waitUs, slackUs, maxWaitUs, predictedUs, MARGIN_US);
            wakeNs = Math.min(wakeNs, now + wakeUs * 1000);
            return false;
        }
        fill(requestClass);
        return true;
    }

    /** A free worker waits for nobody unless the controller fixes a threshold. */
    private double freeThreshold() {
        return commands.thresholdFixed > 0 ? commands.thresholdFixed : 1.0;
    }

    /** Split what waits over the free workers, the preferred groups first. */
    private void fill(final RequestClass requestClass) {
        final List<Worker> available = new ArrayList<>(free);
        int from = 0;
        while (from < available.size() && queue.size(requestClass) > 0) {
            final long tier = preference(available.get(from), requestClass);
            int to = from + 1;
            while (to < available.size() && preference(available.get(to), requestClass) == tier) {
                to++;
            }
            fillTier(requestClass, available.subList(from, to));
            from = to;
        }
    }

    private void fillTier(final RequestClass requestClass, final List<Worker> tier) {
        final int[] caps = new int[tier.size()];
        for (int i = 0; i < caps.length; i++) {
            caps[i] = cap(tier.get(i), requestClass);
        }
        final int[] sizes = ReleaseRule.split(queue.size(requestClass), caps);
        for (int i = 0; i < caps.length; i++) {
            if (sizes[i] > 0) {
                shipTaken(tier.get(i), requestClass, sizes[i], caps[i]);
            }
        }
    }

    private void shipTaken(
            final Worker worker, final RequestClass requestClass, final int size, final int cap) {
        final List<Entry> entries = new ArrayList<>(size);
        queue.take(requestClass, size, entries);
        if (commands.mixClasses && entries.size() < cap) {
            final RequestClass other =
                    requestClass == RequestClass.STRICT
                            ? RequestClass.BEST_EFFORT
                            : RequestClass.STRICT;
            if (serves(worker, other)) {
                queue.take(other, cap - entries.size(), entries);
            }
        }
        ship(worker, requestClass, entries);
    }

    private void ship(
            final Worker worker, final RequestClass requestClass, final List<Entry> entries) {
        if (requestClass == RequestClass.BEST_EFFORT) {
            lastBestEffortNs = now;
        }
        shipments.add(new Shipment(worker, requestClass, entries));
    }

    /** Every worker that may take this class is busy: hand the next batch to one of them early. */
    private void sendAhead(final RequestClass requestClass) {
        while (queue.size(requestClass) > 0) {
            Worker soonest = null;
            for (final Worker worker : workers) {
                if (mayTakeAhead(worker, requestClass)
                        && (soonest == null || startNs(worker) < startNs(soonest))) {
                    soonest = worker;
                }
            }
            if (soonest == null) {
                return;
            }
            final int cap = cap(soonest, requestClass);
            shipTaken(soonest, requestClass, Math.min(cap, queue.size(requestClass)), cap);
        }
    }

    private boolean mayTakeAhead(final Worker worker, final RequestClass requestClass) {
        if (worker.state != WorkerState.READY || isShipped(worker) || !serves(worker, requestClass)) {
            return false;
        }
        for (final RequestClass each : RequestClass.all()) {
            if (queue.peekAlone(each) != null && serves(worker, each)) {
                return false; // that request needs a worker that holds nothing
            }
        }
        if (bestEffortWaits && serves(worker, RequestClass.BEST_EFFORT)) {
            return false; // strict behind strict for ever would starve it
        }
        final Batch running = worker.inFlight.peekFirst();
        return running != null
                && !running.entries.get(0).alone()
                && ReleaseRule.maySendAhead(
                        queue.size(requestClass),
                        threshold,
                        cap(worker, requestClass),
                        worker.inFlight.size(),
                        commands.aheadBatches,
                        0,
                        requestClass == RequestClass.STRICT,
                        running.requestClass == RequestClass.STRICT,
                        strictTraffic);
    }

    private static long startNs(final Worker worker) {
        return worker.inFlight.peekFirst().startNs;
    }

    private boolean isShipped(final Worker worker) {
        for (final Shipment shipment : shipments) {
            if (shipment.worker() == worker) {
                return true;
            }
        }
        return false;
    }

    /** Largest batch of a class for a worker: its cap, scaled by the group's weight. */
    private int cap(final Worker worker, final RequestClass requestClass) {
        final int cap = worker.cap();
        final long scaled = cap * commands.weight(worker.group.index, requestClass) / 1000;
        return (int) Math.max(1, Math.min(cap, scaled));
    }

    private boolean serves(final Worker worker, final RequestClass requestClass) {
        return worker.group.config().classes().contains(requestClass)
                && commands.weight(worker.group.index, requestClass) > 0;
    }

    private long preference(final Worker worker, final RequestClass requestClass) {
        return commands.preference(worker.group.index, requestClass);
    }

    private void collectFree(final RequestClass requestClass) {
        free.clear();
        for (final Worker worker : workers) {
            if (worker.state == WorkerState.READY
                    && worker.inFlight.isEmpty()
                    && !isShipped(worker)
                    && serves(worker, requestClass)) {
                free.add(worker);
            }
        }
        if (free.size() > 1) {
            free.sort(Comparator.comparingLong(worker -> preference(worker, requestClass)));
        }
    }
}
