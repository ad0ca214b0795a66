package org.shunter.torchserve.view;

import static org.shunter.torchserve.page.ControlLayout.*;
import static org.shunter.torchserve.view.ModelLabels.MODEL;
import static org.shunter.torchserve.view.ModelLabels.labels;

import io.prometheus.client.Collector;
import io.prometheus.client.CounterMetricFamily;
import io.prometheus.client.GaugeMetricFamily;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.shunter.torchserve.page.ModelSlot;
import org.shunter.torchserve.pool.ServedModel;
import org.shunter.torchserve.queue.WorkerGroup;
import org.shunter.torchserve.server.ShunterWorkLoadManager;
import org.shunter.torchserve.worker.Worker;

/** Shunter's numbers on TorchServe's own {@code /metrics}. */
public final class ShunterMetrics extends Collector {
    /** Outcomes of requests and where they are counted. */
    private static final Map<String, Integer> OUTCOMES = new LinkedHashMap<>();

    static {
        OUTCOMES.put("answered", S_ANSWERED);
        OUTCOMES.put("expired", S_EXPIRED);
        OUTCOMES.put("rejected", S_REJECTED);
        OUTCOMES.put("failed", S_FAILED);
        OUTCOMES.put("abandoned", S_ABANDONED);
    }

    /** Why deadlines are missed: label and offset. */
    private static final Map<String, Integer> MISSES = new LinkedHashMap<>();

    static {
        MISSES.put("late", S_SLO_LATE);
        MISSES.put("expired", S_EXPIRED);
        MISSES.put("rejected", S_SLO_REJECTED);
        MISSES.put("failed", S_SLO_FAILED);
        MISSES.put("abandoned", S_SLO_ABANDONED);
    }

    private final ShunterWorkLoadManager manager;

    public ShunterMetrics(final ShunterWorkLoadManager manager) {
        this.manager = manager;
    }

    @Override
    public List<MetricFamilySamples> collect() {
        final List<MetricFamilySamples> families = new ArrayList<>();
        final ModelFamilies all = new ModelFamilies(manager.served());
        addRequests(families, all);
        addDeadlines(families, all);
        addTimes(families, all);
        addState(families);
        return families;
    }

    private void addRequests(final List<MetricFamilySamples> families, final ModelFamilies all) {
        families.add(all.byClass("shunter_arrivals_total", "Requests offered", S_ARRIVALS));
        families.add(
                all.byReason(
                        "shunter_requests_total",
                        "Requests that ended, by outcome",
                        "outcome",
                        OUTCOMES));
        families.add(
                all.byClass(
                        "shunter_answered_late_total",
                        "Answers after the deadline",
                        S_ANSWERED_LATE));
        families.add(
                all.gaugeByClass(
                        "shunter_queued_requests",
                        "Requests waiting",
                        (model, c) -> model.slot().get(ModelSlot.of(S_QUEUED, c))));
        final long now = System.nanoTime();
        families.add(
                all.gaugeByClass(
                        "shunter_oldest_wait_seconds",
                        "Wait of the oldest request",
                        (model, c) -> {
                            final long arrival =
                                    model.slot().get(ModelSlot.of(S_OLDEST_ARRIVAL_NS, c));
                            return arrival == 0 ? 0 : Math.max(0, now - arrival) * 1e-9;
                        }));
        families.add(counter("shunter_retried_total", "Requests run again", S_RETRIED));
        families.add(counter("shunter_poisoned_total", "Requests that ended two workers", S_POISONED));
    }

    private void addDeadlines(final List<MetricFamilySamples> families, final ModelFamilies all) {
        final long now = System.nanoTime();
        families.add(
                all.gaugeByClass(
                        "shunter_slo_attainment",
                        "Share of requests with a deadline that met it, last minute; NaN: none",
                        (model, c) -> model.dispatcher().telemetry().window().attainment(c, now)));
        families.addAll(SliceMetrics.of(manager.served()));
        families.add(
                all.byClass("shunter_good_total", "Answers in time and not 5xx: goodput", S_GOOD));
        families.add(
                all.byClass("shunter_slo_met_total", "Requests that met their deadline", S_SLO_MET));
        families.add(
                all.byReason(
                        "shunter_slo_missed_total",
                        "Requests that missed their deadline",
                        "reason",
                        MISSES));
    }

    private void addTimes(final List<MetricFamilySamples> families, final ModelFamilies all) {
        families.add(
                all.times(
                        "shunter_queue_seconds",
                        "Wait before the batch",
                        S_QUEUE_TIMES,
                        S_QUEUE_NS));
        families.add(
                all.times(
                        "shunter_service_seconds",
                        "From the batch's start to its answer",
                        S_SERVICE_TIMES,
                        S_SERVICE_NS));
        families.add(
                all.times(
                        "shunter_latency_seconds",
                        "From arrival to answer",
                        S_LATENCY_TIMES,
                        S_LATENCY_NS));
        families.add(all.batchSizes("shunter_batch_size", S_BATCHES_BY_SIZE, S_BATCH_REQUESTS));
        families.add(
                byGroup(
                        "shunter_predicted_fixed_seconds",
                        "Fitted latency of a batch: fixed part",
                        S_GROUP_FIXED_NS));
        families.add(
                byGroup(
                        "shunter_predicted_request_seconds",
                        "Fitted latency of a batch: per request",
                        S_GROUP_PER_REQUEST_NS));
        families.add(
                byGroup(
                        "shunter_prediction_error_seconds",
                        "Mean absolute error of the predicted latency",
                        S_GROUP_ERROR_NS));
        families.add(
                batches(
                        "shunter_batch_service_seconds_total",
                        "Time spent on batches by size",
                        S_SERVICE_NS_BY_SIZE,
                        1e-9));
    }

    private void addState(final List<MetricFamilySamples> families) {
        families.add(gauge("shunter_in_flight_requests", "Sent, not answered", S_IN_FLIGHT_REQUESTS, 1));
        families.add(gauge("shunter_ready_workers", "Loaded workers", S_READY_WORKERS, 1));
        families.add(gauge("shunter_busy_workers", "Workers with a batch", S_BUSY_WORKERS, 1));
        families.add(gauge("shunter_threshold", "Adaptive threshold", S_THRESHOLD_MILLI, 1e-3));
        families.add(gauge("shunter_generation", "Current generation", S_GENERATION, 1));
        families.add(
                new GaugeMetricFamily(
                        "shunter_settings_valid",
                        "0: shunter.toml cannot be used, the last good settings hold",
                        1 - manager.host().page().get(H_SETTINGS_INVALID)));
    }

    private GaugeMetricFamily byGroup(final String name, final String help, final int offset) {
        final GaugeMetricFamily family =
                new GaugeMetricFamily(name, help, List.of("model", "version", "group"));
        for (final ServedModel model : manager.served()) {
            for (final WorkerGroup<Worker> group : model.pool().current().groups) {
                if (model.slot().get(ModelSlot.ofGroup(S_GROUP_FITTED, group.index)) > 0) {
                    family.addMetric(
                            labels(model, String.valueOf(group.index)),
                            model.slot().get(ModelSlot.ofGroup(offset, group.index)) * 1e-9);
                }
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
