package org.shunter.torchserve.queue;

import java.util.Map;
import java.util.function.Consumer;
import org.shunter.torchserve.forming.RequestClass;

/**
 * What became of a model's last requests, for who asks why one was late or refused. Guarded by its
 * dispatcher; a request costs some stores and no object.
 */
public final class Recent {
    /** Requests that are remembered. */
    public static final int KEPT = 1024;
    /** {@link Line#status} of one whose client left. */
    public static final int ABANDONED = 499;
    private static final String TRACE = "traceparent";

    /**
     * A request that has ended.
     *
     * @param startNs when its batch began, 0 where it never ran
     * @param batch requests in it
     * @param group worker group that ran it, -1 where none did
     * @param deaths workers that died with it
     * @param why what the client was told instead of an answer; empty: it was answered
     * @param trace the request's header {@code traceparent}; empty: it had none, or nobody listens
     */
    public record Line(
            String id,
            RequestClass requestClass,
            long arrivalNs,
            long deadlineNs,
            long startNs,
            long endNs,
            int batch,
            int group,
            int deaths,
            int status,
            String why,
            String trace) {}

    private final String[] ids = new String[KEPT];
    private final String[] reasons = new String[KEPT];
    private final RequestClass[] classes = new RequestClass[KEPT];
    private final long[] times = new long[4 * KEPT];
    private final int[] numbers = new int[4 * KEPT];
    private final Consumer<Line> listener;
    private long count;

    /** {@code listener}: hears of each, under the dispatcher's lock; null: nobody does. */
    public Recent(final Consumer<Line> listener) {
        this.listener = listener;
    }

    /** It was answered. */
    void answered(
            final Entry entry, final Batch batch, final int group, final int status, final long nowNs) {
        add(entry, batch.startNs, nowNs, batch.size(), group, status, "");
    }

    /** It ran, and its worker was lost. */
    void lost(
            final Entry entry,
            final Batch batch,
            final int group,
            final int status,
            final String why,
            final long nowNs) {
        add(entry, batch.startNs, nowNs, batch.size(), group, status, why);
    }

    /** It ended without having run. */
    void ended(final Entry entry, final int status, final String why, final long nowNs) {
        add(entry, 0, nowNs, 0, -1, status, why);
    }

    private void add(
            final Entry entry,
            final long startNs,
            final long endNs,
            final int batch,
            final int group,
            final int status,
            final String why) {
        final int at = (int) (count++ % KEPT);
        ids[at] = entry.job.getJobId();
        reasons[at] = why;
        classes[at] = entry.requestClass;
        times[4 * at] = entry.arrivalNs;
        times[4 * at + 1] = entry.deadlineNs;
        times[4 * at + 2] = startNs;
        times[4 * at + 3] = endNs;
        numbers[4 * at] = batch;
        numbers[4 * at + 1] = group;
        numbers[4 * at + 2] = entry.deaths;
        numbers[4 * at + 3] = status;
        if (listener != null) {
            listener.accept(line(at, traceOf(entry)));
        }
    }

    private static String traceOf(final Entry entry) {
        if (entry.job.getPayload() == null) {
            return "";
        }
        for (final Map.Entry<String, String> each : entry.job.getPayload().getHeaders().entrySet()) {
            if (each.getKey().equalsIgnoreCase(TRACE)) {
                return each.getValue();
            }
        }
        return "";
    }

    /** How many can be asked for. */
    public int size() {
        return (int) Math.min(count, KEPT);
    }

    /** One of them; 0 is the last that ended. */
    public Line get(final int age) {
        return line((int) ((count - 1 - age) % KEPT), "");
    }

    private Line line(final int at, final String trace) {
        return new Line(
                ids[at],
                classes[at],
                times[4 * at],
                times[4 * at + 1],
                times[4 * at + 2],
                times[4 * at + 3],
                numbers[4 * at],
                numbers[4 * at + 1],
                numbers[4 * at + 2],
                numbers[4 * at + 3],
                reasons[at],
                trace);
    }
}
