package org.shunter.torchserve.queue;

import java.util.List;
import org.shunter.torchserve.forming.RequestClass;

/** Requests that run together. Guarded by its dispatcher's lock. */
public final class Batch {
    public final List<Entry> entries;
    public final RequestClass requestClass;
    /** When the worker could start on it: when it was sent, or when the batch before it ended. */
    public long startNs;
    /** When the worker started on it or last sent a part of its answer. */
    public long heardNs;
    /** Earliest deadline in it while it is behind another batch, else {@link Entry#NEVER}. */
    public long deadlineNs = Entry.NEVER;
    /** Whether it was written to its worker, which sets this: else the worker cannot have begun it. */
    public volatile boolean sent;
    /** By how much that was moved on because it had to stand still. */
    public long excusedNs;
    /** Whether it began where strict work was: how long it took says nothing about its worker. */
    public boolean disturbed;
    /** {@link org.shunter.torchserve.preemption.Hold#changes} when it began. */
    public long holds;

    public Batch(final List<Entry> entries, final RequestClass requestClass, final long sentNs) {
        this.entries = entries;
        this.requestClass = requestClass;
        this.startNs = sentNs;
        this.heardNs = sentNs;
    }

    /** Whether a strict request is in it; of two classes, those of one stand before the others. */
    public boolean hasStrict() {
        return entries.get(0).requestClass == RequestClass.STRICT
                || entries.get(entries.size() - 1).requestClass == RequestClass.STRICT;
    }

    public int size() {
        return entries.size();
    }

    /** No worker reads those whose deadlines passed: they end. The others are returned. */
    public List<Entry> endExpired() {
        final List<Entry> awaited =
                entries.stream().filter(entry -> entry.stage != Entry.Stage.EXPIRED).toList();
        entries.stream().filter(entry -> entry.stage == Entry.Stage.EXPIRED).forEach(Entry::end);
        return awaited;
    }

    /** Earliest deadline of those in it whose clients wait, or {@link Entry#NEVER}. */
    public long earliestDeadlineNs() {
        long earliest = Entry.NEVER;
        for (final Entry entry : entries) {
            earliest = entry.isOver() ? earliest : Math.min(earliest, entry.deadlineNs);
        }
        return earliest;
    }
}
