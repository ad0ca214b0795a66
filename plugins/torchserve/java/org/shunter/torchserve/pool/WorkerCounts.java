package org.shunter.torchserve.pool;

import org.pytorch.serve.wlm.Model;

/**
 * The numbers of workers that a model is registered with, which describe and snapshots tell.
 *
 * @param min at least so many
 * @param max at most so many
 */
public record WorkerCounts(int min, int max) {
    /** Those that TorchServe has for a model now; read once, because calls may change them. */
    public static WorkerCounts of(final Model model) {
        return new WorkerCounts(model.getMinWorkers(), model.getMaxWorkers());
    }

    /**
     * Write others in the place of these, unless a scale call has written its own in the meantime,
     * which TorchServe does before it passes the call on.
     *
     * @return those that users asked for last and that were passed on
     */
    WorkerCounts replaceBy(final WorkerCounts others, final Model model) {
        if (!equals(of(model))) {
            return this;
        }
        others.writeTo(model);
        return others;
    }

    /** Let TorchServe have these. */
    public void writeTo(final Model model) {
        model.setMinWorkers(min);
        model.setMaxWorkers(max);
    }

    /**
     * What TorchServe shall compare with a model's registered minimum, so that the model counts as
     * healthy exactly if it has the workers that it needs. That is another number while the
     * controller chose its configuration, or while TorchServe has written down the minimum of a
     * scale call and has not called us yet.
     */
    public static int forPing(final int healthy, final int needed, final int registeredMin) {
        return healthy >= needed
                ? Math.max(healthy, registeredMin)
                : Math.min(healthy, registeredMin - 1);
    }
}
