package org.shunter.torchserve.stock;

import java.util.List;
import org.pytorch.serve.metrics.IMetric;
import org.pytorch.serve.metrics.LogMetric;
import org.pytorch.serve.metrics.MetricCache;
import org.pytorch.serve.util.ConfigManager;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Metrics of TorchServe that its own worker thread would have updated. */
public final class StockMetrics {
    private static final Logger LOGGER = LoggerFactory.getLogger(StockMetrics.class);
    private static final Logger LOG =
            LoggerFactory.getLogger(ConfigManager.MODEL_SERVER_METRICS_LOGGER);

    /** Needs a server, which some tests do without. */
    private static final class Here {
        static final String HOST = ConfigManager.getInstance().getHostName();
    }

    private StockMetrics() {}

    /** WorkerLoadTime: from the start of the process to the loaded model. */
    public static void workerLoaded(final String worker, final double ms) {
        update("WorkerLoadTime", List.of(worker, "Host", Here.HOST), ms);
    }

    private static void update(final String name, final List<String> dimensions, final double ms) {
        final IMetric metric = MetricCache.getInstance().getMetricFrontend(name);
        if (metric != null) {
            add(metric, name, dimensions, ms);
        }
    }

    /** As stock: a metric that an operator has given other dimensions costs no worker. */
    static void add(
            final IMetric metric, final String name, final List<String> dimensions, final double ms) {
        try {
            metric.addOrUpdate(dimensions, ms);
        } catch (RuntimeException e) {
            LOGGER.error("Failed to update frontend metric {}: ", name, e);
        }
    }

    /** WorkerThreadTime: front-end time of a batch whose answer was received at that time. */
    public static void batchDone(final long receivedNs) {
        final MetricCache cache = MetricCache.getInstance();
        final IMetric metric = cache == null ? null : cache.getMetricFrontend("WorkerThreadTime");
        // A line that no logger takes would cost more than all else that is done for a batch here.
        if (metric != null && (!(metric instanceof LogMetric) || LOG.isInfoEnabled())) {
            final double ms = (System.nanoTime() - receivedNs) / 1e6;
            add(metric, "WorkerThreadTime", List.of("Host", Here.HOST), ms);
        }
    }
}
