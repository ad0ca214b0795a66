package org.shunter.torchserve.queue;

import org.pytorch.serve.job.Job;
import org.pytorch.serve.util.messages.WorkerCommands;
import org.shunter.torchserve.forming.RequestClass;
import org.shunter.torchserve.forming.Rerun;
import org.shunter.torchserve.stock.ReceivedBody;

/** A request on its way: waiting, in a batch, or done. All fields are guarded by its dispatcher. */
public final class Entry {
    /** No deadline. */
    public static final long NEVER = Long.MAX_VALUE;

    public enum Stage {
        /** Not offered yet. */
        NEW,
        /** In the queue. */
        QUEUED,
        /** In a batch that was given to a worker. */
        SENT,
        /** In such a batch still, but its client was told that its deadline passed before it began. */
        EXPIRED,
        /** Answered, or its client is gone. */
        DONE
    }

    public final Job job;
    public final RequestClass requestClass;
    public final long arrivalNs;
    public final long deadlineNs;
    public final Rerun rerun;
    /** Arrival order in its dispatcher; ties between deadlines are broken by it. */
    long order;

    public Stage stage = Stage.NEW;
    /** Workers that died with this request in the batch they were running. */
    public int deaths;
    /** It must not share a batch: that of several requests could not be written. */
    public boolean isolated;
    /** A part of a streamed answer went out, so the request cannot run again. */
    public boolean streamed;

    public Entry(
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

    /** It never runs again, and no worker reads it. */
    public void end() {
        stage = Stage.DONE;
        ReceivedBody.release(job);
    }

    /** Nobody waits for an answer to it any more. */
    public boolean isOver() {
        return stage == Stage.DONE || stage == Stage.EXPIRED;
    }

    /**
     * Runs in a batch of its own: a customised describe call, or a request of a batch that ended
     * its worker or could not be written.
     */
    public boolean alone() {
        return deaths > 0 || isolated || describes();
    }

    /** A customised describe call: no inference, so neither its turn nor its time is one's. */
    public boolean describes() {
        return job.getCmd() == WorkerCommands.DESCRIBE;
    }
}
