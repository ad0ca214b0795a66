package org.shunter.torchserve.view;

import io.prometheus.client.Collector;
import io.prometheus.client.Collector.MetricFamilySamples.Sample;
import java.util.ArrayList;
import java.util.List;
import java.util.function.IntToDoubleFunction;
import org.shunter.torchserve.page.ModelSlot;

/** Histograms of the control page as Prometheus has them. */
final class Histograms {
    private Histograms() {}

    /** The words of a histogram on the page. */
    static long[] counts(final ModelSlot slot, final int offset, final int buckets) {
        final long[] counts = new long[buckets];
        for (int bucket = 0; bucket < buckets; bucket++) {
            counts[bucket] = slot.get(offset + 8 * bucket);
        }
        return counts;
    }

    /** Samples in Prometheus' shape: cumulative counts, and the last bucket is everything. */
    static void add(
            final List<Sample> samples,
            final String name,
            final List<String> names,
            final List<String> labels,
            final long[] counts,
            final IntToDoubleFunction upper,
            final double sum) {
        final List<String> bucketNames = new ArrayList<>(names);
        bucketNames.add("le");
        long total = 0;
        for (int bucket = 0; bucket < counts.length; bucket++) {
            total += counts[bucket];
            final boolean last = bucket == counts.length - 1;
            final List<String> bucketLabels = new ArrayList<>(labels);
            bucketLabels.add(
                    last ? "+Inf" : Collector.doubleToGoString(upper.applyAsDouble(bucket)));
            samples.add(new Sample(name + "_bucket", bucketNames, bucketLabels, total));
        }
        samples.add(new Sample(name + "_count", names, labels, total));
        samples.add(new Sample(name + "_sum", names, labels, sum));
    }
}
