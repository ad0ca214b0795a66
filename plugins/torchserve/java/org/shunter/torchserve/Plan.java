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
    /** Batches that take longer are not worth to be queued behind: the hop between two is short. */
    private static final long LONGEST_TO_QUEUE_BEHIND_NS = 5_000_000;

    /** How long a worker that is late is waited for. */
    private static final long LATE_NS = 1_000_000;

    /** A batch for a worker. */
    record Shipment(Worker worker, RequestClass requestClass, List<Entry> entries) {}

    private final RequestQueue queue;
    private final List<Worker> workers;
    private final Commands commands;
    private final long sloNs;
    private final List<Shipment> shipments = new ArrayList<>();
    private final List<Worker> free = new ArrayList<>();
    private final List<Entry> givenUp = new ArrayList<>();
    private final Forecast forecast;
    private final Patience patience;
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
            final long registeredWaitUs,
            final long sloNs) {
        this.queue = queue;
        this.workers = workers;
        this.commands = commands;
        this.forecast = new Forecast(commands);
        this.patience = new Patience(commands, registeredWaitUs);
        this.sloNs = sloNs;
    }

    /**
     * Decide; the results are in {@link #shipments}, {@link #givenUp} and {@link #wakeNs} until the
     * next call.
     */
    void next(final long nowNs, final boolean hasStrictTraffic) {
        commands.refresh();
        shipments.clear();
        givenUp.clear();
        wakeNs = Entry.NEVER;
        now = nowNs;
        threshold = patience.threshold();
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

    /** Requests that cannot be served in time together with the others. */
    List<Entry> givenUp() {
        return givenUp;
    }

    /** When to look again if nothing happens, or {@link Entry#NEVER}. */
    long wakeNs() {
        return wakeNs;
    }

    /** Time passes; before each arrival is counted. */
    void settle(final long nowNs, final long arrivals) {
        patience.settle(nowNs, arrivals);
    }

    /** A worker answered a batch of that size; what it holds still is in its {@code inFlight}. */
    void answered(final Worker worker, final int size, final long nowNs, final long arrivals) {
        final Batch ahead = worker.inFlight.peekFirst();
        final long waiting = queue.size() + (ahead == null ? 0 : ahead.size());
        patience.answered(nowNs, size, waiting, arrivals, forecast.fixedNs(worker));
    }

    /** Requests worth a batch, per worker. */
    double threshold() {
        return patience.threshold();
    }

    // ---- predictions

    /**
     * Shortest predicted time in which a request of a class can be answered. 0 while a worker is
     * free: then it runs, however bad the prediction is, so that a wrong one is noticed.
     */
    long soonestNs(final RequestClass requestClass, final long nowNs) {
        long soonest = Entry.NEVER;
        for (final Worker worker : workers) {
            if (worker.state == WorkerState.READY && serves(worker, requestClass)) {
                final long busyNs = forecast.busyNs(worker, nowNs);
                final long lastsNs = worker.inFlight.isEmpty() ? 0 : forecast.batchNs(worker, 1);
                soonest = Math.min(soonest, busyNs + lastsNs);
            }
        }
        return soonest == Entry.NEVER ? 0 : soonest;
    }

    /** Shortest predicted latency of a request that runs alone. */
    long leastNs() {
        long least = Entry.NEVER;
        for (final Worker worker : workers) {
            if (worker.state == WorkerState.READY) {
                least = Math.min(least, forecast.batchNs(worker, 1));
            }
        }
        return least == Entry.NEVER ? 0 : least;
    }

    /** Whether requests are refused that would be answered too late. */
    boolean admits() {
        return commands.admission;
    }

    /** Predicted time until a request that comes now is answered; 0 when nothing is known. */
    long predictedAnswerNs(final RequestClass requestClass, final long nowNs) {
        long capacity = 0;
        double perNs = 0;
        boolean known = true;
        long busyNs = Entry.NEVER;
        for (final Worker worker : workers) {
            if (worker.state == WorkerState.READY && serves(worker, requestClass)) {
                final int cap = cap(worker, requestClass);
                capacity += cap;
                perNs += (double) cap / Math.max(1, forecast.batchNs(worker, cap));
                busyNs = Math.min(busyNs, forecast.busyNs(worker, nowNs));
                known &= forecast.knows(worker);
            }
        }
        final long ahead =
                requestClass == RequestClass.STRICT ? queue.size(requestClass) : queue.size();
        if (capacity == 0 || !known || busyNs == 0 && ahead == 0) {
            return 0;
        }
        final long roundNs = (long) (capacity / perNs);
        final long waitNs = Deadlines.predictedWaitNs(ahead, capacity, roundNs, busyNs);
        return waitNs + shortestBatchNs(requestClass, (int) (ahead % capacity) + 1);
    }

    /** Latency of the worker that is fastest for that many requests, or for its cap. */
    private long shortestBatchNs(final RequestClass requestClass, final int size) {
        long shortest = Entry.NEVER;
        for (final Worker worker : workers) {
            if (worker.state == WorkerState.READY && serves(worker, requestClass)) {
                final int own = Math.min(size, cap(worker, requestClass));
                shortest = Math.min(shortest, forecast.batchNs(worker, own));
            }
        }
        return shortest == Entry.NEVER ? 0 : shortest;
    }

    // ---- release

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
        collectFree(requestClass);
        if (free.isEmpty()) {
            sendAhead(requestClass);
        }
    }

    private boolean releaseToFree(final RequestClass requestClass, final int queued) {
        long total = 0;
        long freeSinceNs = Long.MAX_VALUE;
        for (final Worker worker : free) {
            total += cap(worker, requestClass);
            freeSinceNs = Math.min(freeSinceNs, worker.freeSinceNs);
        }
        final int capacity = (int) Math.min(Integer.MAX_VALUE, total);
        final boolean othersWait = queue.size() > queue.size(requestClass);
        final double wanted = patience.wanted(now, free.size(), freeSinceNs, othersWait);
        // What follows answers is waited for after the answer, however long the others have waited.
        final long fromNs = patience.adapts() ? freeSinceNs : Long.MIN_VALUE;
        final long oldestNs = Math.max(fromNs, queue.oldestArrivalNs(requestClass));
        final long heldUs = Math.max(0, now - oldestNs) / 1000;
        final long deadlineNs = queue.peek(requestClass).deadlineNs;
        final long slackUs =
                deadlineNs == Entry.NEVER ? ReleaseRule.NO_SLACK : (deadlineNs - now) / 1000;
        final Worker next = free.get(0);
        final int size = Math.min((queued + free.size() - 1) / free.size(), cap(next, requestClass));
        final long predictedUs = forecast.batchNs(next, size) / 1000;
        final long marginUs = forecast.cautionNs(next) / 1000;
        final long maxWaitUs = patience.maxWaitUs();
        if (ReleaseRule.shouldRelease(
                queued, heldUs, slackUs, wanted, maxWaitUs, capacity, predictedUs, marginUs)) {
            fill(requestClass);
            return true;
        }
        final long wakeUs =
                ReleaseRule.wakeAfterUs(heldUs, slackUs, maxWaitUs, predictedUs, marginUs);
        wakeNs = Math.min(wakeNs, Math.min(now + wakeUs * 1000, patience.held()));
        return false;
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
        final List<Worker> sharing = new ArrayList<>(tier);
        if (requestClass == RequestClass.STRICT
                && queue.size(RequestClass.BEST_EFFORT) > 0
                && tier.stream()
                        .allMatch(w -> forecast.knows(w) && serves(w, RequestClass.BEST_EFFORT))) {
            addBusy(sharing, requestClass);
        }
        final int[] caps = new int[sharing.size()];
        final long[] fixed = new long[caps.length];
        final long[] perRequest = new long[caps.length];
        boolean known = caps.length > 1;
        for (int i = 0; i < caps.length; i++) {
            final Worker worker = sharing.get(i);
            caps[i] = cap(worker, requestClass);
            fixed[i] = forecast.busyNs(worker, now) + forecast.fixedNs(worker);
            perRequest[i] = forecast.perRequestNs(worker);
            known &= forecast.knows(worker);
        }
        final int queued = queue.size(requestClass);
        final int[] sizes =
                known
                        ? ReleaseRule.splitByLatency(queued, caps, fixed, perRequest)
                        : ReleaseRule.split(queued, caps);
        for (int i = 0; i < tier.size(); i++) {
            if (sizes[i] > 0) {
                final Worker worker = tier.get(i);
                final boolean spread =
                        requestClass == RequestClass.BEST_EFFORT && sizes[i] == caps[i];
                final int size = spread ? staggered(worker, sizes[i]) : sizes[i];
                shipTaken(worker, requestClass, size, caps[i]);
            }
        }
        for (int i = tier.size(); i < sizes.length; i++) {
            if (sizes[i] > 0) { // if it is not free by then, the others do not wait for it
                wakeNs = Math.min(wakeNs, now + forecast.busyNs(sharing.get(i), now) + LATE_NS);
            }
        }
    }

    /**
     * Workers that will be free soon take their share of strict requests too: with best effort
     * waiting they would otherwise begin another long batch just when these could use them.
     */
    private void addBusy(final List<Worker> sharing, final RequestClass requestClass) {
        for (final Worker worker : workers) {
            if (worker.state == WorkerState.READY
                    && worker.inFlight.size() == 1
                    && forecast.knows(worker)
                    && forecast.busyNs(worker, now) > 0
                    && serves(worker, requestClass)
                    && !isShipped(worker)) {
                sharing.add(worker);
            }
        }
    }

    /** Give a worker the next requests of a class, as many of them as it can serve in time. */
    private void shipTaken(
            final Worker worker,
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
            if (serves(worker, other)) {
                queue.take(other, room - entries.size(), entries);
            }
        }
        ship(worker, requestClass, entries);
    }

    private int fitDeadlines(
            final Worker worker, final RequestClass requestClass, final int size, final int cap) {
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
    private long nextFreeNs(final Worker except, final RequestClass requestClass) {
        long soonest = Entry.NEVER;
        for (final Worker worker : workers) {
            if (worker != except
                    && worker.state == WorkerState.READY
                    && serves(worker, requestClass)
                    && forecast.knows(worker)) {
                final boolean idle = worker.inFlight.isEmpty() && !isShipped(worker);
                soonest = Math.min(soonest, idle ? 0 : Math.max(1, takenNs(worker)));
            }
        }
        return soonest;
    }

    private int shippedSize(final Worker worker) {
        for (final Shipment shipment : shipments) {
            if (shipment.worker() == worker) {
                return shipment.entries().size();
            }
        }
        return 0;
    }

    private void ship(
            final Worker worker, final RequestClass requestClass, final List<Entry> entries) {
        final boolean mixed = entries.get(entries.size() - 1).requestClass != requestClass;
        if (mixed || requestClass == RequestClass.BEST_EFFORT) {
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
            final int size = Math.min(cap, queue.size(requestClass));
            shipTaken(soonest, requestClass, size, cap);
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
                && forecast.batchNs(worker, running.size()) < LONGEST_TO_QUEUE_BEHIND_NS
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

    /**
     * Largest batch of a class for a worker: its cap, scaled by the group's weight. The requests of
     * a best-effort batch add at most half of the SLO of strict ones that may have to wait for it.
     */
    private int cap(final Worker worker, final RequestClass requestClass) {
        long cap = worker.cap();
        cap = Math.min(cap, cap * commands.weight(worker.group.index, requestClass) / 1000);
        if (requestClass == RequestClass.BEST_EFFORT
                && sloNs > 0
                && strictTraffic
                && serves(worker, RequestClass.STRICT)) {
            cap = Math.min(cap, forecast.sizeAdding(worker, sloNs / 2));
        }
        return (int) Math.max(1, cap);
    }

    /** With strict traffic, best-effort batches of several workers end one after the other. */
    private int staggered(final Worker worker, final int cap) {
        if (!strictTraffic || !serves(worker, RequestClass.STRICT) || !forecast.knows(worker)) {
            return cap;
        }
        final long[] busyNs =
                workers.stream()
                        .filter(other -> other != worker && other.state == WorkerState.READY)
                        .filter(other -> serves(other, RequestClass.STRICT))
                        .mapToLong(this::takenNs)
                        .filter(ns -> ns > 0)
                        .toArray();
        return ReleaseRule.staggeredSize(
                cap, forecast.fixedNs(worker), forecast.perRequestNs(worker), busyNs);
    }

    /** Time until a worker is free, what was just given to it included. */
    private long takenNs(final Worker worker) {
        return isShipped(worker) && worker.inFlight.isEmpty()
                ? forecast.batchNs(worker, shippedSize(worker))
                : forecast.busyNs(worker, now);
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
