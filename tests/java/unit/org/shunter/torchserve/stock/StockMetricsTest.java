package org.shunter.torchserve.stock;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.List;
import org.junit.jupiter.api.Test;
import org.pytorch.serve.metrics.IMetric;
import org.pytorch.serve.metrics.MetricBuilder.MetricType;

/** A metric that an operator has given other dimensions costs no worker. */
final class StockMetricsTest {
    private static final class Refusing extends IMetric {
        private int calls;

        Refusing() {
            super(MetricType.GAUGE, "WorkerThreadTime", "ms", List.of("Other"));
        }

        @Override
        public void addOrUpdate(final List<String> dimensions, final double value) {
            calls++;
            throw new IllegalArgumentException("Incorrect number of labels.");
        }

        @Override
        public void addOrUpdate(final List<String> dimensions, final String id, final double value) {
            addOrUpdate(dimensions, value);
        }
    }

    @Test
    void aMetricThatThrowsIsLogged() {
        final Refusing metric = new Refusing();
        StockMetrics.add(metric, "WorkerThreadTime", List.of("Host", "here"), 1.0);
        assertEquals(1, metric.calls);
    }
}
