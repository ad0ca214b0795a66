package org.shunter.torchserve.view;

import static org.shunter.torchserve.view.ModelLabels.MODEL;
import static org.shunter.torchserve.view.ModelLabels.labels;

import io.prometheus.client.Collector;
import io.prometheus.client.CounterMetricFamily;
import io.prometheus.client.GaugeMetricFamily;
import java.util.ArrayList;
import java.util.List;
import java.util.function.ToDoubleFunction;
import org.shunter.torchserve.pool.ServedModel;
import org.shunter.torchserve.preemption.Runners;
import org.shunter.torchserve.server.ShunterWorkLoadManager;

/** On TorchServe's own {@code /metrics}: who holds, and what it costs those that stand still. */
public final class PreemptionMetrics extends Collector {
    private final ShunterWorkLoadManager manager;

    public PreemptionMetrics(final ShunterWorkLoadManager manager) {
        this.manager = manager;
    }

    @Override
    public List<MetricFamilySamples> collect() {
        final List<MetricFamilySamples> families = new ArrayList<>();
        final GaugeMetricFamily holds =
                new GaugeMetricFamily(
                        "shunter_holds", "1 while strict requests hold slices", MODEL);
        for (final ServedModel model : manager.served()) {
            holds.addMetric(labels(model), model.dispatcher().holds() ? 1 : 0);
        }
        families.add(holds);
        families.add(
                counter(
                        "shunter_preemptions_total",
                        "Times that best-effort work was parked",
                        Runners.Totals::preemptions));
        families.add(
                counter(
                        "shunter_parked_seconds_total",
                        "Time that it was parked",
                        totals -> totals.parkedNs() * 1e-9));
        families.add(
                counter(
                        "shunter_yield_seconds_total",
                        "Time that it took to be parked",
                        totals -> totals.yieldNs() * 1e-9));
        families.add(
                counter(
                        "shunter_preemption_drops_total",
                        "Times that a batch was begun anew to give memory back",
                        Runners.Totals::drops));
        return families;
    }

    private CounterMetricFamily counter(
            final String name, final String help, final ToDoubleFunction<Runners.Totals> value) {
        final CounterMetricFamily family = new CounterMetricFamily(name, help, MODEL);
        for (final ServedModel model : manager.served()) {
            family.addMetric(labels(model), value.applyAsDouble(manager.runners().of(model.slot())));
        }
        return family;
    }
}
