package org.shunter.torchserve.dispatch;

import java.util.ArrayList;
import java.util.List;
import org.shunter.torchserve.forming.Deadlines;
import org.shunter.torchserve.forming.RequestClass;
import org.shunter.torchserve.queue.Effects;
import org.shunter.torchserve.queue.Entry;
import org.shunter.torchserve.queue.RequestQueue;

/** Ends requests that can no longer be answered in time. Guarded by its dispatcher's lock. */
final class Expiry {
    private final RequestQueue queue;
    private final CurrentWorkers current;
    private final InFlight inFlight;
    private final RequestFailures failures;

    Expiry(
            final RequestQueue queue,
            final CurrentWorkers current,
            final InFlight inFlight,
            final RequestFailures failures) {
        this.queue = queue;
        this.current = current;
        this.inFlight = inFlight;
        this.failures = failures;
    }

    /** When to look again for what can no longer be answered in time. */
    long nextNs(final long now) {
        final long deadlineNs = queue.earliestDeadlineNs();
        final long tooLateNs =
                deadlineNs == Entry.NEVER
                        ? deadlineNs
                        : Deadlines.tooLateAtNs(now, deadlineNs, current.leastNs());
        return Math.min(tooLateNs, inFlight.earliestDeadlineNs());
    }

    /** Answer what can no longer be answered in time. */
    void expire(final long now, final Effects effects) {
        final boolean queued = queue.earliestDeadlineNs() != Entry.NEVER;
        if (!queued && inFlight.earliestDeadlineNs() > now) {
            return;
        }
        final List<Entry> expired = new ArrayList<>();
        inFlight.takeExpired(now, expired); // behind a worker that may never answer
        for (final RequestClass requestClass : RequestClass.all()) {
            queue.takeExpired(requestClass, now, current.soonestNs(requestClass, now), expired);
        }
        expired.forEach(entry -> failures.expired(entry, now, effects));
    }
}
