package org.shunter.torchserve.view;

import static org.shunter.torchserve.page.ControlLayout.*;

import io.prometheus.client.Collector.MetricFamilySamples;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.shunter.torchserve.forming.RequestClass;
import org.shunter.torchserve.page.ModelSlot;
import org.shunter.torchserve.pool.ServedModel;

/** What became of the requests of models that came by the network. */
final class NetworkMetrics {
    /** Outcomes of requests and where they are counted. */
    private static final Map<String, Integer> OUTCOMES = new LinkedHashMap<>();

    static {
        OUTCOMES.put("answered", S_NETWORK_ANSWERED);
        OUTCOMES.put("expired", S_NETWORK_EXPIRED);
        OUTCOMES.put("rejected", S_NETWORK_REJECTED);
        OUTCOMES.put("failed", S_NETWORK_FAILED);
        OUTCOMES.put("abandoned", S_NETWORK_ABANDONED);
    }

    /** Why deadlines are missed: label and offset. */
    private static final Map<String, Integer> MISSES = new LinkedHashMap<>();

    static {
        MISSES.put("late", S_NETWORK_SLO_LATE);
        MISSES.put("expired", S_NETWORK_EXPIRED);
        MISSES.put("rejected", S_NETWORK_SLO_REJECTED);
        MISSES.put("failed", S_NETWORK_SLO_FAILED);
        MISSES.put("abandoned", S_NETWORK_SLO_ABANDONED);
    }

    private NetworkMetrics() {}

    static List<MetricFamilySamples> of(final Collection<ServedModel> models) {
        final ModelFamilies families = new ModelFamilies(models);
        return List.of(
                families.gaugeByClass(
                        "shunter_nic_slo_attainment",
                        "Share of requests with a deadline that met it, last minute; NaN: none",
                        (model, c) -> attainment(model.slot(), c)),
                families.byClass(
                        "shunter_nic_slo_met_total",
                        "Requests that met their deadline",
                        S_NETWORK_SLO_MET),
                families.byReason(
                        "shunter_nic_slo_missed_total",
                        "Requests that missed their deadline",
                        "reason",
                        MISSES),
                families.byClass(
                        "shunter_nic_arrivals_total",
                        "Requests that came whole",
                        S_NETWORK_ARRIVALS),
                families.byReason(
                        "shunter_nic_outcomes_total",
                        "Requests that ended, by outcome",
                        "outcome",
                        OUTCOMES),
                families.times(
                        "shunter_nic_latency_seconds",
                        "From the last segment's arrival to the answer",
                        S_NETWORK_LATENCY_TIMES,
                        S_NETWORK_LATENCY_NS),
                families.batchSizes(
                        "shunter_nic_batch_size",
                        S_NETWORK_BATCHES_BY_SIZE,
                        S_NETWORK_BATCH_REQUESTS));
    }

    /** Share of the last minute's requests that met their deadline, NaN when there were none. */
    static double attainment(final ModelSlot slot, final RequestClass requestClass) {
        final long ppm = slot.get(ModelSlot.of(S_NETWORK_ATTAINMENT_PPM, requestClass));
        return ppm < 0 ? Double.NaN : Math.min(ppm, 1_000_000) * 1e-6;
    }
}
