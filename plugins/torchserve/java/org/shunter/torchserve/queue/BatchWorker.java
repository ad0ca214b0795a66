package org.shunter.torchserve.queue;

import java.util.ArrayDeque;
import org.shunter.torchserve.preemption.PoolRoom;

/**
 * What a dispatcher needs of a worker: how large its batches may get, what it holds, and a way to
 * hand it more. The fields are guarded by the dispatcher's lock; those that others read without it
 * are volatile.
 */
public abstract class BatchWorker {
    public final WorkerGroup<?> group;
    /** Where its batches run when its process serves other models too, else null. */
    public final PoolRoom room;
    /** Batches that it was given and has not answered; the first one runs. */
    public final ArrayDeque<Batch> inFlight = new ArrayDeque<>(2);
    /** Predicted time of what is before its next batch; for one decision. */
    public long waitNs;
    /** When its last answer came or it became ready. */
    public long freeSinceNs;

    public volatile WorkerState state = WorkerState.STARTING;
    /** Batches it holds, for readers without the lock. */
    public volatile int held;

    /** {@code room}: of the process that it shares, or null. */
    public BatchWorker(final WorkerGroup<?> group, final PoolRoom room) {
        this.group = group;
        this.room = room;
    }

    /** Largest batch this worker takes now. */
    public abstract int cap();

    /** Take a batch for writing; the dispatcher's lock is held. */
    public abstract void enqueue(Batch batch);

    /** Write what was taken; no lock of the dispatcher is held. */
    public abstract void flush();

    /** End for good; no lock of the dispatcher is held. */
    public abstract void end();

    /** It was given a batch. */
    public final void add(final Batch batch) {
        inFlight.addLast(batch);
        held = inFlight.size();
        enqueue(batch);
    }

    /** It does not hold a batch any more; false when it did not before. */
    public final boolean remove(final Batch batch) {
        final boolean removed = inFlight.remove(batch);
        held = inFlight.size();
        return removed;
    }
}
