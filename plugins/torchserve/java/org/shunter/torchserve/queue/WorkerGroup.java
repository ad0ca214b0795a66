package org.shunter.torchserve.queue;

import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import org.shunter.torchserve.forming.LatencyFit;
import org.shunter.torchserve.page.SliceSet;
import org.shunter.torchserve.settings.GroupConfig;

/**
 * Workers of one configuration triple, fed by one front end: this server or the network's.
 *
 * @param <W> what its workers are besides what a dispatcher needs
 */
public final class WorkerGroup<W extends BatchWorker> {
    /**
     * Where its workers run.
     *
     * @param slices of {@code Slices}
     * @param yields whether they stand still for strict work
     */
    public record Place(SliceSet slices, boolean yields) {}

    public final int index;
    /** Its batches come from the network front end; the dispatcher gives it none. */
    public final boolean isNetwork;

    public final Place place;

    public final List<W> workers = new CopyOnWriteArrayList<>();
    private volatile GroupConfig config;
    /** Batches and requests answered; guarded by the dispatcher. */
    public long batches;
    public long requests;
    /** Latency of its workers' batches; guarded by the dispatcher. */
    public final LatencyFit fit = new LatencyFit();
    /** What its workers answered in time lately, and since it began: on its slice. */
    public final SloWindow sloWindow = new SloWindow();

    public WorkerGroup(
            final int index,
            final GroupConfig config,
            final Place place,
            final boolean isNetwork) {
        this.index = index;
        this.place = place;
        this.isNetwork = isNetwork;
        this.config = config;
    }

    public GroupConfig config() {
        return config;
    }

    /** Only numbers changed; the processes stay. */
    public void setConfig(final GroupConfig changed) {
        config = changed;
    }

    /** One more worker, which may be more than the configuration says. */
    public void add(final W worker) {
        workers.add(worker);
        config = config.withInstances(Math.max(workers.size(), config.instances()));
    }

    /**
     * The worker is gone for good, and the configuration says so.
     *
     * @return whether it was here
     */
    public boolean remove(final BatchWorker worker) {
        final boolean removed = workers.remove(worker);
        if (removed) {
            config = config.withInstances(Math.max(1, workers.size()));
        }
        return removed;
    }
}
