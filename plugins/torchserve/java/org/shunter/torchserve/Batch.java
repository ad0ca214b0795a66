package org.shunter.torchserve;

import java.util.List;

/** Requests that run together. Guarded by its dispatcher's lock. */
final class Batch {
    final List<Entry> entries;
    final RequestClass requestClass;
    /** When the worker could start on it: when it was sent, or when the batch before it ended. */
    long startNs;
    /** When the worker started on it or last sent a part of its answer. */
    long heardNs;
    /** Whether it was written to its worker, which sets this: else the worker cannot have begun it. */
    volatile boolean sent;
    /** By how much that was moved on because it had to stand still. */
    long excusedNs;
    /** Whether it began where strict work was: how long it took says nothing about its worker. */
    boolean disturbed;

    Batch(final List<Entry> entries, final RequestClass requestClass, final long sentNs) {
        this.entries = entries;
        this.requestClass = requestClass;
        this.startNs = sentNs;
        this.heardNs = sentNs;
    }

    /** Whether a strict request is in it; of two classes, those of one stand before the others. */
    boolean hasStrict() {
        return entries.get(0).requestClass == RequestClass.STRICT
                || entries.get(entries.size() - 1).requestClass == RequestClass.STRICT;
    }

    int size() {
        return entries.size();
    }
}
