package org.shunter.torchserve.worker;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import org.pytorch.serve.metrics.Metric;
import org.pytorch.serve.metrics.MetricBuilder.MetricMode;
import org.pytorch.serve.metrics.MetricCache;
import org.pytorch.serve.util.ConfigManager;
import org.shunter.torchserve.queue.Reply;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Reads one output stream of a worker: metric lines into TorchServe's metrics, the rest logged. */
final class WorkerOutput extends Thread {
    private static final Logger LOGGER = LoggerFactory.getLogger(WorkerOutput.class);
    private static final Logger MODEL_LOGGER =
            LoggerFactory.getLogger(ConfigManager.MODEL_LOGGER);
    private static final String METRIC = "[METRICS]";
    private static final String PREFIX = "INFO > ";
    private static final String STARTED = "Torch worker started.";

    private final InputStream stream;
    private final boolean error;
    private final Runnable onStarted;
    private final CompletableFuture<Void> ended = new CompletableFuture<>();
    private volatile String lastLine = "";
    private volatile String lastException = "";

    WorkerOutput(
            final String name,
            final InputStream stream,
            final boolean error,
            final Runnable onStarted) {
        super(name + (error ? "-stderr" : "-stdout"));
        setDaemon(true);
        this.stream = stream;
        this.error = error;
        this.onStarted = onStarted;
    }

    @Override
    public void run() {
        try (BufferedReader lines =
                new BufferedReader(new InputStreamReader(stream, StandardCharsets.UTF_8))) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                take(line);
            }
        } catch (IOException e) {
            LOGGER.debug("Output of {} ended: {}", getName(), e.toString());
        } finally {
            ended.complete(null);
        }
    }

    /** Completed when all was read. */
    CompletableFuture<Void> ended() {
        return ended;
    }

    /** Its last line that is not empty. */
    String lastLine() {
        return lastLine;
    }

    /** The last line that ends a traceback of Python, empty when there was none. */
    String lastException() {
        return lastException;
    }

    private void remember(final String line) {
        if (line.isBlank()) {
            return;
        }
        lastLine = line;
        final int colon = line.indexOf(':');
        final String kind = colon < 0 ? line : line.substring(0, colon);
        if ((kind.endsWith("Error") || kind.endsWith("Exception")) && kind.indexOf(' ') < 0) {
            lastException = line;
        }
    }

    /** Count what follows the first line of a reply's message, before the reply is delivered. */
    static void takeMetrics(final Reply reply) {
        final String message = reply.message();
        int end = reply.code() == 200 && Metrics.areHeard() ? message.indexOf('\n') : -1;
        while (end >= 0) {
            final int begin = end + 1;
            end = message.indexOf('\n', begin);
            takeMetric(end < 0 ? message.substring(begin) : message.substring(begin, end), 0);
        }
    }

    /** Whether the line is a metric's; it is counted then. */
    private static boolean takeMetric(final String line, final int at) {
        if (!line.startsWith(METRIC, at)) {
            return false;
        }
        try {
            update(line.substring(at + METRIC.length()));
        } catch (RuntimeException e) {
            LOGGER.error("Metric line of a worker was not taken: {}", line, e);
        }
        return true;
    }

    private void take(final String line) {
        if (takeMetric(line, line.startsWith(PREFIX) ? PREFIX.length() : 0)) {
            return;
        }
        remember(line);
        if (line.endsWith(STARTED)) {
            onStarted.run();
        }
        if (error) {
            MODEL_LOGGER.warn(line);
        } else {
            MODEL_LOGGER.info(line);
        }
    }

    /**
     * In log mode a metric is a line of a log. Where that is off, reading one would cost more than
     * all else that is done for a batch, and nobody would hear of it.
     */
    private static final class Metrics {
        private static final Logger LOG =
                LoggerFactory.getLogger(ConfigManager.MODEL_METRICS_LOGGER);
        private static final boolean ARE_LINES =
                ConfigManager.getInstance().getMetricsMode() == MetricMode.LOG;

        static boolean areHeard() {
            return !ARE_LINES || LOG.isInfoEnabled();
        }
    }

    private static void update(final String text) {
        if (!Metrics.areHeard()) {
            return;
        }
        final Metric metric = Metric.parse(text);
        if (metric == null) {
            LOGGER.error("Failed to parse metrics line: \"{}\".", text);
            return;
        }
        final MetricCache cache = MetricCache.getInstance();
        final String name = metric.getMetricName();
        if (cache.getMetricBackend(name) == null) {
            if (!ConfigManager.getInstance().isModelMetricsAutoDetectEnabled()) {
                return;
            }
            cache.addAutoDetectMetricBackend(metric);
        }
        final List<String> dimensions = metric.getDimensionValues();
        dimensions.add(metric.getHostName());
        cache.getMetricBackend(name)
                .addOrUpdate(dimensions, metric.getRequestId(), Double.parseDouble(metric.getValue()));
    }
}
