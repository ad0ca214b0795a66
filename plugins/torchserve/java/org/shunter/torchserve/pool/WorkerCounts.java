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
}
