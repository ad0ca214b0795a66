package org.shunter.torchserve;

import static org.shunter.torchserve.ControlLayout.*;

/** What a dispatcher counts, written to its model's slot; called under the dispatcher's lock. */
final class Telemetry {
    private final ModelSlot slot;

    Telemetry(final ModelSlot slot) {
        this.slot = slot;
    }

    private void count(final int offset, final Entry entry) {
        count(offset, entry.requestClass);
    }

    private void count(final int offset, final RequestClass requestClass) {
        slot.add(ModelSlot.of(offset, requestClass), 1);
    }

    void arrived(final RequestClass requestClass) {
        count(S_ARRIVALS, requestClass);
    }

    void rejected(final RequestClass requestClass) {
        count(S_REJECTED, requestClass);
    }

    void abandoned(final Entry entry) {
        count(S_ABANDONED, entry);
    }

    void expired(final Entry entry) {
        count(S_EXPIRED, entry);
    }

    void failed(final Entry entry) {
        count(S_FAILED, entry);
    }

    void retried() {
        slot.add(S_RETRIED, 1);
    }

    void poisoned() {
        slot.add(S_POISONED, 1);
    }

    /** A batch was answered at that time. */
    void answered(final Batch batch, final long nowNs) {
        final int bucket = 8 * ModelSlot.sizeBucket(batch.size());
        slot.add(S_BATCHES_BY_SIZE + bucket, 1);
        slot.add(S_SERVICE_NS_BY_SIZE + bucket, nowNs - batch.startNs);
        for (final Entry entry : batch.entries) {
            count(S_ANSWERED, entry);
            if (entry.deadlineNs < nowNs) {
                count(S_ANSWERED_LATE, entry);
            }
        }
    }

    /** How things stand now. */
    void publish(
            final RequestQueue queue,
            final int inFlightRequests,
            final int inFlightBatches,
            final double threshold,
            final long nowNs) {
        for (final RequestClass requestClass : RequestClass.all()) {
            slot.set(ModelSlot.of(S_QUEUED, requestClass), queue.size(requestClass));
            final long oldest = queue.oldestArrivalNs(requestClass);
            slot.set(
                    ModelSlot.of(S_OLDEST_ARRIVAL_NS, requestClass),
                    oldest == Entry.NEVER ? 0 : oldest);
        }
        slot.set(S_IN_FLIGHT_REQUESTS, inFlightRequests);
        slot.set(S_IN_FLIGHT_BATCHES, inFlightBatches);
        slot.set(S_THRESHOLD_MILLI, (long) (threshold * 1000));
        slot.set(S_UPDATED_NS, nowNs);
    }
}
