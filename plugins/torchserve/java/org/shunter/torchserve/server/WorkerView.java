package org.shunter.torchserve.server;

import io.netty.channel.EventLoopGroup;
import org.pytorch.serve.util.ConfigManager;
import org.pytorch.serve.wlm.BatchAggregator;
import org.pytorch.serve.wlm.Model;
import org.pytorch.serve.wlm.WorkerStateListener;
import org.pytorch.serve.wlm.WorkerThread;
import org.shunter.torchserve.queue.WorkerState;
import org.shunter.torchserve.worker.Worker;

/** How TorchServe's management calls see a worker of ours. It is never run as a thread. */
final class WorkerView extends WorkerThread {
    private final Worker worker;

    WorkerView(
            final Worker worker,
            final ConfigManager config,
            final EventLoopGroup group,
            final Model model) {
        super(
                config,
                group,
                worker.address.port(),
                worker.gpuId,
                model,
                new BatchAggregator(model),
                new WorkerStateListener(worker.firstLoad, Integer.MAX_VALUE));
        this.worker = worker;
    }

    @Override
    public org.pytorch.serve.wlm.WorkerState getState() {
        switch (worker.state) {
            case STARTING:
            case LOADING:
                return org.pytorch.serve.wlm.WorkerState.WORKER_STARTED;
            case READY:
            case DRAINING:
                return org.pytorch.serve.wlm.WorkerState.WORKER_MODEL_LOADED;
            case BACKOFF:
                return org.pytorch.serve.wlm.WorkerState.WORKER_STOPPED;
            default:
                return org.pytorch.serve.wlm.WorkerState.WORKER_SCALED_DOWN;
        }
    }

    @Override
    public boolean isRunning() {
        return worker.state == WorkerState.READY || worker.state == WorkerState.DRAINING;
    }

    @Override
    public boolean isHealthy() {
        return worker.isHealthy();
    }

    @Override
    public int getPid() {
        return worker.pid();
    }

    @Override
    public long getStartTime() {
        return worker.createdMs;
    }

    /** Stock asks nvidia-smi by number, which a worker on a device of its own does not have. */
    @Override
    public String getGpuUsage() {
        return worker.hasDevice() ? "N/A" : super.getGpuUsage();
    }

    @Override
    public void run() {
        throw new IllegalStateException("a view of a worker is not a thread");
    }

    @Override
    public void shutdown() {
        worker.drain();
    }
}
