package org.shunter.torchserve.preemption;

/** The room for batches in one process of the pool, which serves several models. */
public final class PoolRoom {
    /** Which process of this server's pool it is. */
    public final int number;

    public PoolRoom(final int number) {
        this.number = number;
    }
}
