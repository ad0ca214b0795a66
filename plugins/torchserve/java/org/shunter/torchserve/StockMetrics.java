package org.shunter.torchserve;

import java.util.List;
import org.pytorch.serve.metrics.IMetric;
import org.pytorch.serve.metrics.MetricCache;
import org.pytorch.serve.util.ConfigManager;

/** Metrics of TorchServe that its own worker thread would have updated. */
final class StockMetrics {
    private static final String HOST = ConfigManager.getInstance().getHostName();

    private StockMetrics() {}

    /** WorkerLoadTime: from the start of the process to the loaded model. */
    static void workerLoaded(final String worker, final double ms) {
        update("WorkerLoadTime", List.of(worker, "Host", HOST), ms);
    }

    private static void update(final String name, final List<String> dimensions, final double ms) {
        final IMetric metric = MetricCache.getInstance().getMetricFrontend(name);
        if (metric != null) {
            metric.addOrUpdate(dimensions, ms);
        }
    }

    /** WorkerThreadTime: front-end time per batch. A gauge, so one value in 100 ms is enough. */
    static final class Overhead {
        private static final long INTERVAL_NS = 100_000_000L;
        private volatile long lastNs;

        /** The answer to a batch that was received then has been sent. */
        void report(final long receivedNs) {
            if (receivedNs - lastNs > INTERVAL_NS) {
                lastNs = receivedNs;
                update(
                        "WorkerThreadTime",
                        List.of("Host", HOST),
                        (System.nanoTime() - receivedNs) / 1e6);
            }
        }
    }
}
