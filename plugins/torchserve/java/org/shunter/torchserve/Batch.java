package org.shunter.torchserve;

import java.util.List;

/** Requests that run together. Guarded by its dispatcher's lock. */
final class Batch {
    final List<Entry> entries;
    final RequestClass requestClass;
    final long sentNs;
    /** When the worker could start on it: when it was sent, or when the batch before it ended. */
    long startNs;
    /** Requests that had arrived at the model when this batch started. */
    long arrivalsAtStart;

    Batch(final List<Entry> entries, final RequestClass requestClass, final long sentNs) {
        this.entries = entries;
        this.requestClass = requestClass;
        this.sentNs = sentNs;
        this.startNs = sentNs;
    }

    int size() {
        return entries.size();
    }
}
