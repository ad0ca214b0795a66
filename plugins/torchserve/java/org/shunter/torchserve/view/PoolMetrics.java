package org.shunter.torchserve.view;

import static org.shunter.torchserve.view.ModelLabels.MODEL;
import static org.shunter.torchserve.view.ModelLabels.labels;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import io.prometheus.client.Collector;
import io.prometheus.client.CounterMetricFamily;
import io.prometheus.client.GaugeMetricFamily;
import java.util.ArrayList;
import java.util.List;
import org.shunter.torchserve.host.PoolMemory;
import org.shunter.torchserve.pool.ServedModel;
import org.shunter.torchserve.server.ShunterWorkLoadManager;

/** On TorchServe's own {@code /metrics}: the processes of the pool, and who waits for them. */
public final class PoolMetrics extends Collector {
    private static final List<String> POOL = List.of("pool");

    private final ShunterWorkLoadManager manager;

    public PoolMetrics(final ShunterWorkLoadManager manager) {
        this.manager = manager;
    }

    @Override
    public List<MetricFamilySamples> collect() {
        final List<JsonObject> pools = PoolMemory.read(manager.host().runtime().path());
        final List<MetricFamilySamples> families = new ArrayList<>();
        families.add(waits());
        families.add(gauge("shunter_pool_models", "Models that it serves", "models", pools));
        families.add(gauge("shunter_pool_hot_models", "Models with hot weights", "hot", pools));
        families.add(gauge("shunter_pool_hot_bytes", "Hot memory in use", "bytes", pools));
        families.add(gauge("shunter_pool_budget_bytes", "Hot memory it may use", "budget", pools));
        families.add(
                counter("shunter_pool_hits_total", "Batches with hot weights", "hits", 1, pools));
        families.add(
                counter(
                        "shunter_pool_misses_total",
                        "Batches that waited for weights",
                        "misses",
                        1,
                        pools));
        families.add(
                counter(
                        "shunter_pool_swap_seconds_total",
                        "Time that weights took to come",
                        "swap_ms",
                        1e-3,
                        pools));
        families.add(
                counter(
                        "shunter_pool_evictions_total",
                        "Models whose weights left",
                        "evictions",
                        1,
                        pools));
        return families;
    }

    private GaugeMetricFamily waits() {
        final GaugeMetricFamily family =
                new GaugeMetricFamily(
                        "shunter_batches_waiting_for_room",
                        "Batches that wait for room in the pool",
                        MODEL);
        for (final ServedModel model : manager.served()) {
            family.addMetric(labels(model), model.dispatcher().waitsForRoom());
        }
        return family;
    }

    private static GaugeMetricFamily gauge(
            final String name, final String help, final String field, final List<JsonObject> pools) {
        final GaugeMetricFamily family = new GaugeMetricFamily(name, help, POOL);
        pools.forEach(pool -> family.addMetric(number(pool), value(pool.get(field))));
        return family;
    }

    private static CounterMetricFamily counter(
            final String name,
            final String help,
            final String field,
            final double unit,
            final List<JsonObject> pools) {
        final CounterMetricFamily family = new CounterMetricFamily(name, help, POOL);
        pools.forEach(pool -> family.addMetric(number(pool), value(pool.get(field)) * unit));
        return family;
    }

    private static List<String> number(final JsonObject pool) {
        return List.of(pool.get("pool").getAsString());
    }

    /** A number, or how many a list has; 0 for what was not said. */
    private static double value(final JsonElement said) {
        if (said != null && said.isJsonArray()) {
            return said.getAsJsonArray().size();
        }
        final boolean isNumber =
                said != null && said.isJsonPrimitive() && said.getAsJsonPrimitive().isNumber();
        return isNumber ? said.getAsDouble() : 0;
    }
}
