package org.shunter.torchserve.queue;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.PriorityQueue;
import java.util.function.Predicate;
import org.shunter.torchserve.forming.Deadlines;
import org.shunter.torchserve.forming.RequestClass;

/**
 * The waiting requests of one model: earliest deadline first inside a class, arrival order between
 * equal deadlines. Guarded by its dispatcher's lock.
 *
 * <p>A request leaves from the middle (client gone) by changing its stage; the structures skip it
 * when they meet it and are rebuilt when most of what they hold is gone.
 */
public final class RequestQueue {
    private static final Comparator<Entry> EARLIEST_DEADLINE =
            (a, b) -> {
                final int byDeadline = Long.compare(a.deadlineNs, b.deadlineNs);
                return byDeadline != 0 ? byDeadline : Long.compare(a.order, b.order);
            };

    private final List<PriorityQueue<Entry>> byDeadline = new ArrayList<>();
    private final List<ArrayDeque<Entry>> byArrival = new ArrayList<>();
    private final ArrayDeque<Entry> alone = new ArrayDeque<>();
    private final int[] queued = new int[RequestClass.COUNT];
    private final int[] queuedAlone = new int[RequestClass.COUNT];
    private final Object lock;
    private long nextOrder;

    /** {@code lock}: whoever calls holds it. */
    public RequestQueue(final Object lock) {
        this.lock = lock;
        for (int i = 0; i < RequestClass.COUNT; i++) {
            byDeadline.add(new PriorityQueue<>(64, EARLIEST_DEADLINE));
            byArrival.add(new ArrayDeque<>());
        }
    }

    /** Add a new request. */
    public void add(final Entry entry) {
        entry.order = nextOrder++;
        insert(entry);
        if (entry.alone()) {
            alone.addLast(entry);
        } else {
            byArrival.get(entry.requestClass.ordinal()).addLast(entry);
        }
    }

    /**
     * Put a request back that was sent to a worker which died; it keeps its place in the order. Of
     * several, the youngest comes first.
     */
    public void restore(final Entry entry) {
        insert(entry);
        if (entry.alone()) {
            alone.addFirst(entry);
        } else {
            byArrival.get(entry.requestClass.ordinal()).addFirst(entry);
        }
    }

    private void insert(final Entry entry) {
        assert Thread.holdsLock(lock);
        entry.stage = Entry.Stage.QUEUED;
        if (entry.alone()) {
            queuedAlone[entry.requestClass.ordinal()]++;
        } else {
            byDeadline.get(entry.requestClass.ordinal()).add(entry);
            queued[entry.requestClass.ordinal()]++;
        }
    }

    /** Take a waiting request out. */
    public void remove(final Entry entry, final Entry.Stage to) {
        assert Thread.holdsLock(lock);
        entry.stage = to;
        if (to == Entry.Stage.DONE) {
            entry.end();
        }
        if (entry.alone()) {
            queuedAlone[entry.requestClass.ordinal()]--;
            alone.remove(entry);
        } else {
            queued[entry.requestClass.ordinal()]--;
            compact(entry.requestClass.ordinal());
        }
    }

    /** What is gone keeps its body as long as it is here. */
    private void compact(final int c) {
        final ArrayDeque<Entry> arrivals = byArrival.get(c);
        if (queued[c] == 0) {
            arrivals.clear();
            byDeadline.get(c).clear();
            return;
        }
        if (arrivals.size() > 2 * queued[c] + 64) {
            arrivals.removeIf(e -> !mayShare(e));
        }
        final PriorityQueue<Entry> deadlines = byDeadline.get(c);
        if (deadlines.size() > 2 * queued[c] + 64) {
            deadlines.removeIf(e -> e.stage != Entry.Stage.QUEUED);
        }
    }

    /** Whether it waits for a batch with others, and not alone after one that failed. */
    private static boolean mayShare(final Entry entry) {
        return entry.stage == Entry.Stage.QUEUED && !entry.alone();
    }

    /** Waiting requests of a class that may share a batch. */
    public int size(final RequestClass requestClass) {
        assert Thread.holdsLock(lock);
        return queued[requestClass.ordinal()];
    }

    /** Waiting requests of a class, those that run alone included. */
    public int waiting(final RequestClass requestClass) {
        assert Thread.holdsLock(lock);
        return queued[requestClass.ordinal()] + queuedAlone[requestClass.ordinal()];
    }

    /** All waiting requests. */
    public int size() {
        assert Thread.holdsLock(lock);
        return queued[0] + queued[1] + queuedAlone[0] + queuedAlone[1];
    }

    /**
     * The request of a class that runs next in a batch of its own, or null. A describe call waits
     * for what came before it.
     */
    public Entry peekAlone(final RequestClass requestClass) {
        assert Thread.holdsLock(lock);
        for (final Entry entry : alone) {
            if (entry.requestClass == requestClass
                    && !(entry.describes() && oldestArrivalNs(requestClass) < entry.arrivalNs)) {
                return entry;
            }
        }
        return null;
    }

    /** The request of a class that runs next, or null. */
    public Entry peek(final RequestClass requestClass) {
        assert Thread.holdsLock(lock);
        final PriorityQueue<Entry> heap = byDeadline.get(requestClass.ordinal());
        while (!heap.isEmpty() && heap.peek().stage != Entry.Stage.QUEUED) {
            heap.poll();
        }
        return heap.peek();
    }

    /** Arrival of the oldest that waits for a batch with others, or {@link Entry#NEVER}. */
    public long oldestArrivalNs(final RequestClass requestClass) {
        assert Thread.holdsLock(lock);
        final ArrayDeque<Entry> arrivals = byArrival.get(requestClass.ordinal());
        while (!arrivals.isEmpty() && !mayShare(arrivals.peekFirst())) {
            arrivals.pollFirst();
        }
        return arrivals.isEmpty() ? Entry.NEVER : arrivals.peekFirst().arrivalNs;
    }

    /** Move up to {@code limit} requests of a class, in order, into a batch. */
    public void take(final RequestClass requestClass, final int limit, final List<Entry> batch) {
        for (int i = 0; i < limit; i++) {
            final Entry entry = peek(requestClass);
            if (entry == null) {
                return;
            }
            byDeadline.get(requestClass.ordinal()).poll();
            remove(entry, Entry.Stage.SENT);
            batch.add(entry);
        }
    }

    /** Deadlines of the first requests of a class, at most {@code limit}, ascending. */
    public long[] firstDeadlines(final RequestClass requestClass, final int limit) {
        final PriorityQueue<Entry> heap = byDeadline.get(requestClass.ordinal());
        final List<Entry> first = new ArrayList<>();
        while (first.size() < limit && peek(requestClass) != null) {
            first.add(heap.poll());
        }
        heap.addAll(first);
        return first.stream().mapToLong(entry -> entry.deadlineNs).toArray();
    }

    /** The youngest waiting request of a class that may share a batch, or null. */
    public Entry youngest(final RequestClass requestClass) {
        assert Thread.holdsLock(lock);
        final ArrayDeque<Entry> arrivals = byArrival.get(requestClass.ordinal());
        while (!arrivals.isEmpty() && !mayShare(arrivals.peekLast())) {
            arrivals.pollLast();
        }
        return arrivals.peekLast();
    }

    /** Take the most urgent requests of a class out for good. */
    public void giveUp(final RequestClass requestClass, final int count, final List<Entry> given) {
        final int from = given.size();
        take(requestClass, count, given);
        given.subList(from, given.size()).forEach(Entry::end);
    }

    /** Take out every request of a class that cannot be answered in time any more. */
    public void takeExpired(
            final RequestClass requestClass,
            final long nowNs,
            final long soonestNs,
            final List<Entry> expired) {
        Entry next = peek(requestClass);
        while (next != null && Deadlines.isTooLate(nowNs, next.deadlineNs, soonestNs)) {
            byDeadline.get(requestClass.ordinal()).poll();
            remove(next, Entry.Stage.DONE);
            expired.add(next);
            next = peek(requestClass);
        }
        takeAlone(
                requestClass,
                entry -> Deadlines.isTooLate(nowNs, entry.deadlineNs, soonestNs),
                expired);
    }

    /** Earliest deadline of all that wait, or {@link Entry#NEVER}. */
    public long earliestDeadlineNs() {
        long earliest = Entry.NEVER;
        for (final RequestClass requestClass : RequestClass.all()) {
            final Entry entry = peek(requestClass);
            earliest = entry == null ? earliest : Math.min(earliest, entry.deadlineNs);
        }
        for (final Entry entry : alone) {
            earliest = Math.min(earliest, entry.deadlineNs);
        }
        return earliest;
    }

    /** Take everything of a class out. */
    public List<Entry> takeAll(final RequestClass requestClass) {
        final List<Entry> all = new ArrayList<>();
        take(requestClass, Integer.MAX_VALUE, all);
        takeAlone(requestClass, entry -> true, all);
        return all;
    }

    /** Take out those of them that run alone. */
    private void takeAlone(
            final RequestClass requestClass,
            final Predicate<Entry> which,
            final List<Entry> taken) {
        for (final Entry entry : List.copyOf(alone)) {
            if (entry.requestClass == requestClass && which.test(entry)) {
                remove(entry, Entry.Stage.DONE);
                taken.add(entry);
            }
        }
    }
}
