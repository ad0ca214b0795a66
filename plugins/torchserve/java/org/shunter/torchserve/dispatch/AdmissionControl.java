package org.shunter.torchserve.dispatch;

import org.shunter.torchserve.forming.RequestClass;
import org.shunter.torchserve.page.Commands;
import org.shunter.torchserve.queue.Effects;
import org.shunter.torchserve.queue.Entry;
import org.shunter.torchserve.queue.Refusal;
import org.shunter.torchserve.queue.RequestQueue;

/** Which requests of a model may wait. Guarded by its dispatcher's lock. */
final class AdmissionControl {
    private static final long FULL_MEMORY_NS = 1_000_000_000L;

    private final Object lock;
    private final String name;
    private final int capacity;
    private final RequestQueue queue;
    private final CurrentWorkers current;
    private final Commands commands;
    private final RequestFailures failures;
    private String refusal;
    private boolean hadWorkers;
    private long fullNs = Long.MIN_VALUE / 2;

    AdmissionControl(
            final Object lock,
            final String name,
            final int capacity,
            final RequestQueue queue,
            final CurrentWorkers current,
            final Commands commands,
            final RequestFailures failures) {
        this.lock = lock;
        this.name = name;
        this.capacity = capacity;
        this.queue = queue;
        this.current = current;
        this.commands = commands;
        this.failures = failures;
    }

    int capacity() {
        return capacity;
    }

    /** Whether a request lately found as many waiting as may: more come than can be served. */
    boolean wasFull(final long now) {
        return now - fullNs < FULL_MEMORY_NS;
    }

    /** Refuse what comes from now on, with this text; null accepts again. */
    void refuse(final String reason) {
        assert Thread.holdsLock(lock);
        refusal = reason;
    }

    /** There are workers: from now on a class without one is refused. */
    void workersCame() {
        assert Thread.holdsLock(lock);
        hadWorkers = true;
    }

    /** Why a new request may not wait, or null. A strict one may end a best-effort one for it. */
    Refusal refusalOf(final Entry entry, final Effects effects) {
        assert Thread.holdsLock(lock);
        final String reason = reasonAgainst(entry.requestClass);
        if (reason != null) {
            return Refusal.unavailable(reason);
        }
        if (commands.admission && entry.deadlineNs != Entry.NEVER) {
            final long answerNs = predictedAnswerNs(entry);
            final long lateNs = entry.arrivalNs + answerNs - entry.deadlineNs;
            if (lateNs > 0) {
                return Refusal.tooLate(name, answerNs, lateNs);
            }
        }
        if (queue.size() < capacity) {
            return null;
        }
        fullNs = entry.arrivalNs;
        return makeRoom(entry, effects) ? null : Refusal.unavailable(full());
    }

    /** Why requests of a class are not taken at all, or null. */
    String reasonAgainst(final RequestClass requestClass) {
        assert Thread.holdsLock(lock);
        if (refusal != null) {
            return refusal;
        }
        return hadWorkers && !current.hasWorkerFor(requestClass)
                ? "Model \"" + name + "\" has no worker for class " + requestClass.label()
                : null;
    }

    private long predictedAnswerNs(final Entry entry) {
        final RequestClass requestClass = entry.requestClass;
        final long ahead =
                requestClass == RequestClass.STRICT ? queue.size(requestClass) : queue.size();
        return current.predictedAnswerNs(requestClass, ahead, entry.arrivalNs);
    }

    private String full() {
        return "Model \"" + name + "\": " + capacity
                + " requests wait already; raise job_queue_size or add workers";
    }

    /** A full queue takes a strict request in place of the youngest best-effort one. */
    private boolean makeRoom(final Entry entry, final Effects effects) {
        final Entry youngest =
                entry.requestClass == RequestClass.STRICT
                        ? queue.youngest(RequestClass.BEST_EFFORT)
                        : null;
        final long soonestNs = current.soonestNs(entry.requestClass, entry.arrivalNs);
        if (youngest == null || entry.deadlineNs - soonestNs < entry.arrivalNs) {
            return false;
        }
        queue.remove(youngest, Entry.Stage.DONE);
        failures.displaced(youngest, full(), effects);
        return true;
    }
}
