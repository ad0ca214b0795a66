package org.shunter.torchserve.view;

import static org.shunter.torchserve.page.ControlLayout.*;
import static org.shunter.torchserve.view.ModelLabels.MODEL;
import static org.shunter.torchserve.view.ModelLabels.labels;

import io.prometheus.client.Collector;
import io.prometheus.client.CounterMetricFamily;
import io.prometheus.client.GaugeMetricFamily;
import io.prometheus.client.SummaryMetricFamily;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.shunter.torchserve.page.ControlPage;
import org.shunter.torchserve.pool.ServedModel;
import org.shunter.torchserve.server.ShunterWorkLoadManager;

/** The network front end's numbers on TorchServe's own {@code /metrics}, while there is one. */
public final class FrontEndMetrics extends Collector {
    private static final String DROP_PREFIX = "drop_";

    private final ShunterWorkLoadManager manager;

    public FrontEndMetrics(final ShunterWorkLoadManager manager) {
        this.manager = manager;
    }

    @Override
    public List<MetricFamilySamples> collect() {
        final List<MetricFamilySamples> families = new ArrayList<>();
        if (!manager.frontEnd().isServing()) {
            return families;
        }
        addCounters(families);
        final ControlPage page = manager.host().page();
        families.add(
                new GaugeMetricFamily(
                        "shunter_nic_sessions",
                        "Open sessions of the network front end",
                        page.get(H_FRONT_END_SESSIONS)));
        families.add(
                new GaugeMetricFamily(
                        "shunter_nic_landing_blocks",
                        "Blocks of the pool in which payloads land",
                        page.get(H_LANDING_BLOCKS)));
        families.add(
                new GaugeMetricFamily(
                        "shunter_nic_landing_free",
                        "Of these, used by nobody",
                        page.get(H_LANDING_FREE)));
        families.add(
                new GaugeMetricFamily(
                        "shunter_nic_landing_wanted",
                        "Blocks that full queues would need",
                        page.get(H_LANDING_WANTED)));
        families.add(roundTrips(page));
        families.add(gauge("workers", "Workers that it feeds", S_NETWORK_WORKERS));
        families.add(gauge("queued_requests", "Requests waiting for a worker", S_NETWORK_QUEUED));
        families.add(gauge("entries", "Entries of the tensor queue", S_NETWORK_ENTRIES));
        families.add(gauge("free_entries", "Entries used by nobody", S_NETWORK_FREE));
        families.add(
                gauge("credit", "Requests that clients may have on their way", S_NETWORK_CREDIT));
        families.addAll(NetworkMetrics.of(models()));
        return families;
    }

    private void addCounters(final List<MetricFamilySamples> families) {
        final CounterMetricFamily drops =
                new CounterMetricFamily(
                        "shunter_nic_drops_total", "Datagrams of no use", List.of("reason"));
        for (final Map.Entry<String, Long> counter : manager.frontEnd().counters().entrySet()) {
            final String name = counter.getKey();
            if (name.startsWith(DROP_PREFIX)) {
                drops.addMetric(List.of(name.substring(DROP_PREFIX.length())), counter.getValue());
            } else {
                families.add(
                        new CounterMetricFamily(
                                "shunter_nic_" + name + "_total",
                                "Counted by the network front end",
                                counter.getValue()));
            }
        }
        families.add(drops);
    }

    private static MetricFamilySamples roundTrips(final ControlPage page) {
        return new SummaryMetricFamily(
                "shunter_nic_rtt_seconds",
                "From the answer to a first hello to the second one, clients' time included",
                page.get(H_FRONT_END_RTT_COUNT),
                page.get(H_FRONT_END_RTT_NS) * 1e-9);
    }

    private GaugeMetricFamily gauge(final String name, final String help, final int offset) {
        final GaugeMetricFamily family =
                new GaugeMetricFamily("shunter_nic_" + name, help, MODEL);
        for (final ServedModel model : models()) {
            family.addMetric(labels(model), model.slot().get(offset));
        }
        return family;
    }

    /** Those that the front end serves. */
    private List<ServedModel> models() {
        return manager.served().stream()
                .filter(model -> model.slot().get(S_NETWORK_ENTRIES) > 0)
                .toList();
    }
}
