package org.shunter.torchserve.view;

import static org.shunter.torchserve.page.ControlLayout.*;
import static org.shunter.torchserve.view.ModelLabels.BY_CLASS;
import static org.shunter.torchserve.view.ModelLabels.MODEL;
import static org.shunter.torchserve.view.ModelLabels.labels;

import io.prometheus.client.Collector.MetricFamilySamples;
import io.prometheus.client.Collector.Type;
import io.prometheus.client.CounterMetricFamily;
import io.prometheus.client.GaugeMetricFamily;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.function.ToDoubleBiFunction;
import org.shunter.torchserve.forming.RequestClass;
import org.shunter.torchserve.page.ModelSlot;
import org.shunter.torchserve.pool.ServedModel;

/** Words of the slots of some models as Prometheus has them. */
final class ModelFamilies {
    private final Collection<ServedModel> models;

    ModelFamilies(final Collection<ServedModel> models) {
        this.models = models;
    }

    CounterMetricFamily byClass(final String name, final String help, final int offset) {
        final CounterMetricFamily family = new CounterMetricFamily(name, help, BY_CLASS);
        for (final ServedModel model : models) {
            for (final RequestClass c : RequestClass.all()) {
                family.addMetric(
                        labels(model, c.label()), model.slot().get(ModelSlot.of(offset, c)));
            }
        }
        return family;
    }

    /** {@code offsets}: of the values of one more label. */
    CounterMetricFamily byReason(
            final String name,
            final String help,
            final String label,
            final Map<String, Integer> offsets) {
        final CounterMetricFamily family =
                new CounterMetricFamily(name, help, List.of("model", "version", "class", label));
        for (final ServedModel model : models) {
            for (final RequestClass c : RequestClass.all()) {
                offsets.forEach(
                        (reason, offset) ->
                                family.addMetric(
                                        labels(model, c.label(), reason),
                                        model.slot().get(ModelSlot.of(offset, c))));
            }
        }
        return family;
    }

    GaugeMetricFamily gaugeByClass(
            final String name,
            final String help,
            final ToDoubleBiFunction<ServedModel, RequestClass> value) {
        final GaugeMetricFamily family = new GaugeMetricFamily(name, help, BY_CLASS);
        for (final ServedModel model : models) {
            for (final RequestClass c : RequestClass.all()) {
                family.addMetric(labels(model, c.label()), value.applyAsDouble(model, c));
            }
        }
        return family;
    }

    MetricFamilySamples times(
            final String name, final String help, final int buckets, final int sum) {
        final List<MetricFamilySamples.Sample> samples = new ArrayList<>();
        for (final ServedModel model : models) {
            for (final RequestClass c : RequestClass.all()) {
                final int first = buckets + 8 * TIME_BUCKETS * c.ordinal();
                Histograms.add(
                        samples,
                        name,
                        BY_CLASS,
                        labels(model, c.label()),
                        Histograms.counts(model.slot(), first, TIME_BUCKETS),
                        bucket -> (1L << TIME_BUCKET_SHIFT + bucket) * 1e-9,
                        model.slot().get(ModelSlot.of(sum, c)) * 1e-9);
            }
        }
        return new MetricFamilySamples(name, Type.HISTOGRAM, help, samples);
    }

    MetricFamilySamples batchSizes(final String name, final int buckets, final int requests) {
        final List<MetricFamilySamples.Sample> samples = new ArrayList<>();
        for (final ServedModel model : models) {
            Histograms.add(
                    samples,
                    name,
                    MODEL,
                    labels(model),
                    Histograms.counts(model.slot(), buckets, SIZE_BUCKETS),
                    bucket -> 1L << bucket,
                    model.slot().get(requests));
        }
        return new MetricFamilySamples(name, Type.HISTOGRAM, "Requests in a batch", samples);
    }
}
