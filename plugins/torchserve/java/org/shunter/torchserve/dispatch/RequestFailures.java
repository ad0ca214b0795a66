package org.shunter.torchserve.dispatch;

import java.util.List;
import org.shunter.torchserve.queue.Effects;
import org.shunter.torchserve.queue.Entry;
import org.shunter.torchserve.queue.Loss;
import org.shunter.torchserve.queue.Telemetry;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Answers to accepted requests that no worker gives: each is counted under its reason and told why.
 * The requests are out of the queue already. Guarded by its dispatcher's lock.
 */
final class RequestFailures {
    private static final Logger LOGGER = LoggerFactory.getLogger(RequestFailures.class);

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
        telemetry.expired(entry);
        final long waitedMs = (now - entry.arrivalNs) / 1_000_000;
        effects.refuse(
                entry,
                504,
                "The deadline cannot be met: waited " + waitedMs + " ms in the queue of " + name);
    }

    /** A strict request took its place in a full queue. */
    void displaced(final Entry entry, final String full, final Effects effects) {
        assert Thread.holdsLock(lock);
        telemetry.rejected(entry);
        effects.refuse(entry, 503, full + "; a strict request took this one's place");
    }

    /** Its worker was lost, and it does not run again. */
    void givenUp(final Entry entry, final Loss loss, final Effects effects) {
        assert Thread.holdsLock(lock);
        entry.stage = Entry.Stage.DONE;
        telemetry.failed(entry);
        if (!Loss.isPoison(entry)) {
            effects.refuse(
                    entry,
                    loss.jobStatus(),
                    "Worker died. The request is not run again: " + loss.cause());
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
        effects.refuse(
                entry,
                loss.jobStatus(),
                "Worker died. The request ended " + entry.deaths + " workers: " + loss.cause());
    }

    /** Nobody is left to serve them. */
    void failed(
            final List<Entry> entries,
            final int status,
            final String text,
            final Effects effects) {
        for (final Entry entry : entries) {
            entry.stage = Entry.Stage.DONE;
            telemetry.failed(entry);
            effects.refuse(entry, status, text);
        }
    }
}
