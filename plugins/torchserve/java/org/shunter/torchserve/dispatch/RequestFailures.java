package org.shunter.torchserve.dispatch;

import java.util.List;
import org.shunter.torchserve.queue.Batch;
import org.shunter.torchserve.queue.Effects;
import org.shunter.torchserve.queue.Entry;
import org.shunter.torchserve.queue.Loss;
import org.shunter.torchserve.queue.Telemetry;
import org.shunter.torchserve.queue.WorkerGroup;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Answers to accepted requests that no worker gives: each is counted under its reason and told why.
 * The requests are out of the queue already. Guarded by its dispatcher's lock.
 */
final class RequestFailures {
    private static final Logger LOGGER = LoggerFactory.getLogger(RequestFailures.class);

    private static final int EXPIRED = 504;
    private static final int DISPLACED = 503;

    private final Object lock;
    private final String name;
    private final Telemetry telemetry;

    RequestFailures(final Object lock, final String name, final Telemetry telemetry) {
        this.lock = lock;
        this.name = name;
        this.telemetry = telemetry;
    }

    /** Its deadline cannot be met any more. */
    void expired(final Entry entry, final long now, final Effects effects) {
        assert Thread.holdsLock(lock);
        final long waitedMs = (now - entry.arrivalNs) / 1_000_000;
        final String why =
                "The deadline cannot be met: waited " + waitedMs + " ms in the queue of " + name;
        telemetry.expired(entry, EXPIRED, why);
        effects.refuse(entry, EXPIRED, why);
    }

    /** A strict request took its place in a full queue. */
    void displaced(final Entry entry, final String full, final Effects effects) {
        assert Thread.holdsLock(lock);
        final String why = full + "; a strict request took this one's place";
        telemetry.rejected(entry, DISPLACED, why);
        effects.refuse(entry, DISPLACED, why);
    }

    /** Its worker was lost, and it does not run again. */
    void givenUp(
            final Entry entry,
            final Batch batch,
            final WorkerGroup<?> group,
            final Loss loss,
            final Effects effects) {
        assert Thread.holdsLock(lock);
        entry.end();
        final boolean isPoison = Loss.isPoison(entry);
        final String why =
                isPoison
                        ? "Worker died. The request ended " + entry.deaths + " workers: " + loss.cause()
                        : "Worker died. The request is not run again: " + loss.cause();
        telemetry.lost(entry, batch, group.index, loss.status(), why);
        effects.refuse(entry, loss.jobStatus(), why);
        if (!isPoison) {
            return;
        }
        telemetry.poisoned();
        LOGGER.error(
                "Request {} to {} ended {} workers (last: {}) and is answered {}",
                entry.job.getJobId(),
                name,
                entry.deaths,
                loss.cause(),
                loss.status());
    }

    /** Nobody is left to serve them. */
    void failed(
            final List<Entry> entries,
            final int status,
            final String text,
            final Effects effects) {
        for (final Entry entry : entries) {
            entry.end();
            telemetry.failed(entry, status, text);
            effects.refuse(entry, status, text);
        }
    }
}
