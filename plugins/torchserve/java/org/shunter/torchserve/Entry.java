package org.shunter.torchserve;

import org.pytorch.serve.job.Job;
import org.pytorch.serve.util.messages.WorkerCommands;

/** A request on its way: waiting, in a batch, or done. All fields are guarded by its dispatcher. */
final class Entry {
    /** No deadline. */
    static final long NEVER = Long.MAX_VALUE;

    enum Stage {
        /** Not offered yet. */
        NEW,
        /** In the queue. */
        QUEUED,
        /** In a batch that was given to a worker. */
        SENT,
        /** Answered, or its client is gone. */
        DONE
    }

    final Job job;
    final RequestClass requestClass;
    final long arrivalNs;
    final long deadlineNs;
    final Rerun rerun;
    /** Arrival order in its dispatcher; ties between deadlines are broken by it. */
    long order;

    Stage stage = Stage.NEW;
    /** Workers that died with this request in the batch they were running. */
    int deaths;
    /** It must not share a batch: that of several requests could not be written. */
    boolean isolated;
    /** A part of a streamed answer went out, so the request cannot run again. */
    boolean streamed;

    Entry(
            final Job job,
            final RequestClass requestClass,
            final long arrivalNs,
            final long deadlineNs,
            final Rerun rerun) {
        this.job = job;
        this.requestClass = requestClass;
        this.arrivalNs = arrivalNs;
        this.deadlineNs = deadlineNs;
        this.rerun = rerun;
    }

    /**
     * Runs in a batch of its own: a customised describe call, or a request of a batch that ended
     * its worker or could not be written.
     */
    boolean alone() {
        return deaths > 0 || isolated || describes();
    }

    /** A customised describe call: no inference, so neither its turn nor its time is one's. */
    boolean describes() {
        return job.getCmd() == WorkerCommands.DESCRIBE;
    }
}
