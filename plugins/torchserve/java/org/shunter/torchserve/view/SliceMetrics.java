package org.shunter.torchserve.view;

import static org.shunter.torchserve.view.ModelLabels.labels;

import io.prometheus.client.Collector.MetricFamilySamples;
import io.prometheus.client.CounterMetricFamily;
import io.prometheus.client.GaugeMetricFamily;
import java.util.Collection;
import java.util.List;
import org.shunter.torchserve.forming.RequestClass;
import org.shunter.torchserve.pool.ServedModel;
import org.shunter.torchserve.queue.SloWindow;
import org.shunter.torchserve.queue.WorkerGroup;
import org.shunter.torchserve.worker.Worker;

/** How many deadlines were met on each slice, by model and class, as Prometheus has it. */
final class SliceMetrics {
    private static final List<String> LABELS =
            List.of("model", "version", "class", "group", "slice");

    private SliceMetrics() {}

    /** Of what workers answered; counters begin anew with each generation of workers. */
    static List<MetricFamilySamples> of(final Collection<ServedModel> models) {
        final GaugeMetricFamily share =
                new GaugeMetricFamily(
                        "shunter_slice_slo_attainment",
                        "Share of answers with a deadline that met it, last minute; NaN: none",
                        LABELS);
        final CounterMetricFamily met =
                new CounterMetricFamily(
                        "shunter_slice_slo_met_total", "Answers within their deadline", LABELS);
        final CounterMetricFamily missed =
                new CounterMetricFamily(
                        "shunter_slice_slo_missed_total", "Answers after their deadline or 5xx", LABELS);
        final long now = System.nanoTime();
        for (final ServedModel model : models) {
            for (final WorkerGroup<Worker> group : model.pool().current().groups) {
                final SloWindow window = group.sloWindow;
                for (final RequestClass c : RequestClass.all()) {
                    final List<String> labels =
                            labels(
                                    model,
                                    c.label(),
                                    String.valueOf(group.index),
                                    model.sliceOf(group));
                    share.addMetric(labels, window.attainment(c, now));
                    met.addMetric(labels, window.met(c));
                    missed.addMetric(labels, window.missed(c));
                }
            }
        }
        return List.of(share, met, missed);
    }
}
