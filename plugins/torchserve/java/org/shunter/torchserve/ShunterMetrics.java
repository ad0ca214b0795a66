package org.shunter.torchserve;

import static org.shunter.torchserve.ControlLayout.*;

import io.prometheus.client.Collector;
import io.prometheus.client.CounterMetricFamily;
import io.prometheus.client.GaugeMetricFamily;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Shunter's numbers on TorchServe's own {@code /metrics}. */
final class ShunterMetrics extends Collector {
    private static final List<String> MODEL = List.of("model", "version");
    private static final List<String> BY_CLASS = List.of("model", "version", "class");
    /** Outcomes of requests and where they are counted. */
    private static final Map<String, Integer> OUTCOMES = new LinkedHashMap<>();

    static {
        OUTCOMES.put("answered", S_ANSWERED);
        OUTCOMES.put("expired", S_EXPIRED);
        OUTCOMES.put("rejected", S_REJECTED);
        OUTCOMES.put("failed", S_FAILED);
        OUTCOMES.put("abandoned", S_ABANDONED);
    }

    private final ShunterWorkLoadManager manager;

    ShunterMetrics(final ShunterWorkLoadManager manager) {
        this.manager = manager;
    }

    @Override
    public List<MetricFamilySamples> collect() {
        final List<MetricFamilySamples> families = new ArrayList<>();
        families.add(byClass("shunter_arrivals_total", "Requests offered", S_ARRIVALS));
        families.add(outcomes());
        families.add(
                byClass("shunter_answered_late_total", "Answers after the deadline", S_ANSWERED_LATE));
        families.add(queued());
        families.add(oldestWait());
        families.add(counter("shunter_retried_total", "Requests run again", S_RETRIED));
        families.add(counter("shunter_poisoned_total", "Requests that ended two workers", S_POISONED));
        families.add(batches("shunter_batches_total", "Batches by size", S_BATCHES_BY_SIZE, 1));
        families.add(
                batches(
                        "shunter_batch_service_seconds_total",
                        "Time spent on batches by size",
                        S_SERVICE_NS_BY_SIZE,
                        1e-9));
        families.add(gauge("shunter_in_flight_requests", "Sent, not answered", S_IN_FLIGHT_REQUESTS, 1));
        families.add(gauge("shunter_ready_workers", "Loaded workers", S_READY_WORKERS, 1));
        families.add(gauge("shunter_busy_workers", "Workers with a batch", S_BUSY_WORKERS, 1));
        families.add(gauge("shunter_threshold", "Adaptive threshold", S_THRESHOLD_MILLI, 1e-3));
        families.add(gauge("shunter_generation", "Current generation", S_GENERATION, 1));
        return families;
    }

    private static List<String> labels(final ServedModel model, final String... more) {
        final List<String> labels =
                new ArrayList<>(List.of(model.model().getModelName(), model.model().getVersion()));
        labels.addAll(List.of(more));
        return labels;
    }

    private CounterMetricFamily byClass(final String name, final String help, final int offset) {
        final CounterMetricFamily family = new CounterMetricFamily(name, help, BY_CLASS);
        for (final ServedModel model : manager.served()) {
            for (final RequestClass c : RequestClass.all()) {
                family.addMetric(
                        labels(model, c.label()), model.slot().get(ModelSlot.of(offset, c)));
            }
        }
        return family;
    }

    private CounterMetricFamily outcomes() {
        final CounterMetricFamily family =
                new CounterMetricFamily(
                        "shunter_requests_total",
                        "Requests that ended, by outcome",
                        List.of("model", "version", "class", "outcome"));
        for (final ServedModel model : manager.served()) {
            for (final RequestClass c : RequestClass.all()) {
                OUTCOMES.forEach(
                        (outcome, offset) ->
                                family.addMetric(
                                        labels(model, c.label(), outcome),
                                        model.slot().get(ModelSlot.of(offset, c))));
            }
        }
        return family;
    }

    private GaugeMetricFamily queued() {
        final GaugeMetricFamily family =
                new GaugeMetricFamily("shunter_queued_requests", "Requests waiting", BY_CLASS);
        for (final ServedModel model : manager.served()) {
            for (final RequestClass c : RequestClass.all()) {
                family.addMetric(
                        labels(model, c.label()), model.slot().get(ModelSlot.of(S_QUEUED, c)));
            }
        }
        return family;
    }

    private GaugeMetricFamily oldestWait() {
        final GaugeMetricFamily family =
                new GaugeMetricFamily(
                        "shunter_oldest_wait_seconds", "Wait of the oldest request", BY_CLASS);
        final long now = System.nanoTime();
        for (final ServedModel model : manager.served()) {
            for (final RequestClass c : RequestClass.all()) {
                final long arrival = model.slot().get(ModelSlot.of(S_OLDEST_ARRIVAL_NS, c));
                family.addMetric(
                        labels(model, c.label()),
                        arrival == 0 ? 0 : Math.max(0, now - arrival) * 1e-9);
            }
        }
        return family;
    }

    private CounterMetricFamily counter(final String name, final String help, final int offset) {
        final CounterMetricFamily family = new CounterMetricFamily(name, help, MODEL);
        for (final ServedModel model : manager.served()) {
            family.addMetric(labels(model), model.slot().get(offset));
        }
        return family;
    }

    private CounterMetricFamily batches(
            final String name, final String help, final int offset, final double unit) {
        final CounterMetricFamily family =
                new CounterMetricFamily(name, help, List.of("model", "version", "size"));
        for (final ServedModel model : manager.served()) {
            for (int bucket = 0; bucket < SIZE_BUCKETS; bucket++) {
                final long value = model.slot().get(offset + 8 * bucket);
                if (value > 0) {
                    family.addMetric(
                            labels(model, String.valueOf(1L << bucket)), value * unit);
                }
            }
        }
        return family;
    }

    private GaugeMetricFamily gauge(
            final String name, final String help, final int offset, final double unit) {
        final GaugeMetricFamily family = new GaugeMetricFamily(name, help, MODEL);
        for (final ServedModel model : manager.served()) {
            family.addMetric(labels(model), model.slot().get(offset) * unit);
        }
        return family;
    }
}
