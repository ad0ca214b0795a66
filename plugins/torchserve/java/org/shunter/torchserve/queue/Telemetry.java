package org.shunter.torchserve.queue;

import static org.shunter.torchserve.page.ControlLayout.*;

import java.util.List;
import java.util.function.Consumer;
import org.shunter.torchserve.forming.LatencyFit;
import org.shunter.torchserve.forming.RequestClass;
import org.shunter.torchserve.page.ModelSlot;

/** What a dispatcher counts, written to its model's slot; called under the dispatcher's lock. */
public final class Telemetry {
    private static final int SERVER_ERROR = 500;

    private final ModelSlot slot;
    private final SloWindow window = new SloWindow();
    private final Recent recent;
    private final String[] whyExpired = new String[RequestClass.COUNT];
    private final String[] whyRejected = new String[RequestClass.COUNT];

    /** {@code listener}: hears of each request that ends, or null. */
    public Telemetry(final ModelSlot slot, final Consumer<Recent.Line> listener) {
        this.slot = slot;
        this.recent = new Recent(listener);
    }

    /** Shares of requests with a deadline that met it lately. */
    public SloWindow window() {
        return window;
    }

    /** What became of the last requests. */
    public Recent recent() {
        return recent;
    }

    /** What the last request of a class was told that expired, or null. */
    public String whyExpired(final RequestClass requestClass) {
        return whyExpired[requestClass.ordinal()];
    }

    /** What the last one was told that was refused, or null. */
    public String whyRejected(final RequestClass requestClass) {
        return whyRejected[requestClass.ordinal()];
    }

    private void count(final int offset, final RequestClass requestClass) {
        slot.add(ModelSlot.of(offset, requestClass), 1);
    }

    /** A request with a deadline missed it for that reason. */
    private void missed(final int reason, final Entry entry) {
        if (entry.deadlineNs != Entry.NEVER) {
            count(reason, entry.requestClass);
            window.ended(entry.requestClass, false, System.nanoTime());
        }
    }

    public void arrived(final RequestClass requestClass) {
        count(S_ARRIVALS, requestClass);
    }

    /** Refused before it became an entry. */
    public void rejected(final RequestClass requestClass, final String why) {
        count(S_REJECTED, requestClass);
        whyRejected[requestClass.ordinal()] = why;
    }

    public void rejected(final Entry entry, final int status, final String why) {
        rejected(entry.requestClass, why);
        missed(S_SLO_REJECTED, entry);
        recent.ended(entry, status, why, System.nanoTime());
    }

    public void abandoned(final Entry entry) {
        count(S_ABANDONED, entry.requestClass);
        missed(S_SLO_ABANDONED, entry);
        recent.ended(entry, Recent.ABANDONED, "The client left", System.nanoTime());
    }

    public void expired(final Entry entry, final int status, final String why) {
        count(S_EXPIRED, entry.requestClass);
        whyExpired[entry.requestClass.ordinal()] = why;
        window.ended(entry.requestClass, false, System.nanoTime());
        recent.ended(entry, status, why, System.nanoTime());
    }

    public void failed(final Entry entry, final int status, final String why) {
        countFailed(entry);
        recent.ended(entry, status, why, System.nanoTime());
    }

    /** It ran in a batch whose worker was lost, and is not run again. */
    public void lost(
            final Entry entry,
            final Batch batch,
            final int group,
            final int status,
            final String why) {
        countFailed(entry);
        recent.lost(entry, batch, group, status, why, System.nanoTime());
    }

    private void countFailed(final Entry entry) {
        count(S_FAILED, entry.requestClass);
        missed(S_SLO_FAILED, entry);
    }

    /** It ran in a batch whose worker was lost, and runs again. */
    public void retried() {
        slot.add(S_RETRIED, 1);
    }

    public void poisoned() {
        slot.add(S_POISONED, 1);
    }

    /** A batch was answered at that time with these statuses, by a worker of a group. */
    public void answered(
            final Batch batch, final WorkerGroup<?> group, final int[] statuses, final long nowNs) {
        final long serviceNs = nowNs - batch.startNs;
        final int bucket = 8 * ModelSlot.sizeBucket(batch.size());
        slot.add(S_BATCHES_BY_SIZE + bucket, 1);
        slot.add(S_SERVICE_NS_BY_SIZE + bucket, serviceNs);
        slot.add(S_BATCH_REQUESTS, batch.size());
        if (batch.requestClass == RequestClass.STRICT) {
            slot.add(S_STRICT_BATCHES + bucket, 1);
            slot.add(S_STRICT_BATCH_NS + bucket, serviceNs);
        }
        final List<Entry> entries = batch.entries;
        for (int i = 0; i < entries.size(); i++) {
            final Entry entry = entries.get(i);
            if (entry.stage == Entry.Stage.EXPIRED) {
                continue; // counted when its client was told
            }
            final RequestClass c = entry.requestClass;
            count(S_ANSWERED, c);
            slot.addTime(S_QUEUE_TIMES, S_QUEUE_NS, c, batch.startNs - entry.arrivalNs);
            slot.addTime(S_SERVICE_TIMES, S_SERVICE_NS, c, serviceNs);
            slot.addTime(S_LATENCY_TIMES, S_LATENCY_NS, c, nowNs - entry.arrivalNs);
            judge(entry, group.sloWindow, statuses[i], nowNs);
            recent.answered(entry, batch, group.index, statuses[i], nowNs);
        }
    }

    private void judge(
            final Entry entry, final SloWindow ofGroup, final int status, final long nowNs) {
        final RequestClass c = entry.requestClass;
        final boolean late = entry.deadlineNs < nowNs;
        final boolean good = status < SERVER_ERROR && !late;
        if (late) {
            count(S_ANSWERED_LATE, c);
        }
        if (good) {
            count(S_GOOD, c);
        }
        if (entry.deadlineNs != Entry.NEVER) {
            count(good ? S_SLO_MET : status < SERVER_ERROR ? S_SLO_LATE : S_SLO_FAILED, c);
            window.ended(c, good, nowNs);
            ofGroup.ended(c, good, nowNs);
        }
    }

    /** How things stand now. */
    public void publish(
            final RequestQueue queue,
            final int inFlightRequests,
            final int inFlightBatches,
            final double threshold,
            final long nowNs) {
        for (final RequestClass requestClass : RequestClass.all()) {
            slot.set(ModelSlot.of(S_QUEUED, requestClass), queue.waiting(requestClass));
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

    /** What is known of a group's latency. */
    public static void publishFit(final ModelSlot slot, final WorkerGroup<?> group) {
        final LatencyFit fit = group.fit;
        slot.set(ModelSlot.ofGroup(S_GROUP_FIXED_NS, group.index), (long) fit.fixedNs());
        slot.set(ModelSlot.ofGroup(S_GROUP_PER_REQUEST_NS, group.index), (long) fit.perRequestNs());
        slot.set(ModelSlot.ofGroup(S_GROUP_ERROR_NS, group.index), (long) fit.errorNs());
        slot.set(ModelSlot.ofGroup(S_GROUP_FITTED, group.index), fit.known() ? fit.batches() : 0);
    }
}
