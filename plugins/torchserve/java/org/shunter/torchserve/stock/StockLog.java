package org.shunter.torchserve.stock;

import org.pytorch.serve.util.ConfigManager;
import org.pytorch.serve.wlm.WorkerInitializationException;
import org.pytorch.serve.wlm.WorkerThread;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * What TorchServe's own worker threads log when a worker comes or goes, in their words and under
 * their names: alerts are made of them. Its lines per request are not written.
 */
public final class StockLog {
    private static final Logger WORKER = LoggerFactory.getLogger(WorkerThread.class);
    private static final Logger TELEMETRY =
            LoggerFactory.getLogger(ConfigManager.MODEL_SERVER_TELEMETRY_LOGGER);

    private StockLog() {}

    /** A worker did not start, or did not answer in time. */
    public static void workerError(final String cause) {
        WORKER.error("Backend worker error", new WorkerInitializationException(cause));
    }

    /** A worker ended while it loaded its model. */
    public static void loadFailed(final String model, final String cause) {
        WORKER.warn("Load model failed: {}, error: {}", model, cause);
    }

    /** A worker ended; whether it was the first time since it worked. */
    public static void recovery(final boolean first, final long sinceMs) {
        if (first) {
            WORKER.info("Auto recovery start timestamp: {}", sinceMs);
        } else {
            WORKER.warn("Auto recovery failed again");
        }
    }

    /** It will be started again. */
    public static void retry(final int worker, final int seconds) {
        WORKER.info("Retry worker: {} in {} seconds.", worker, seconds);
    }

    /** It works again. */
    public static void recovered() {
        WORKER.info("Auto recovery succeeded, reset recoveryStartTS");
    }

    /** Something that nobody thought of; counted where telemetry is enabled. */
    public static void serverError(final Throwable error) {
        final ConfigManager config = ConfigManager.getInstance();
        if (config.isTelemetryEnabled()) {
            TELEMETRY.info(
                    "ModelServerError.Count:1|#TorchServe:{},{}:-1",
                    config.getVersion(),
                    error.getClass().getCanonicalName());
        }
    }
}
