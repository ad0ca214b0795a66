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

    Batch(final List<Entry> entries, final RequestClass requestClass, final long sentNs) {
        this.entries = entries;
        this.requestClass = requestClass;
        this.startNs = sentNs;
        this.heardNs = sentNs;
    }

    int size() {
        return entries.size();
    }
}
