package org.shunter.torchserve.settings;

/**
 * What the server's settings say of the pool of processes that serve several models each.
 *
 * @param all whether models that do not say it are in the pool
 * @param workers processes of the pool at each place
 */
public record PoolSettings(boolean all, int workers) {
    /** Where nothing is said: one process, for models that ask for it. */
    public static final PoolSettings USUAL = new PoolSettings(false, 1);
}
