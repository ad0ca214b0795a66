package org.shunter.torchserve.view;

import static org.shunter.torchserve.page.ControlLayout.*;

import com.google.gson.JsonElement;
import com.google.gson.JsonNull;
import com.google.gson.JsonObject;
import com.google.gson.JsonPrimitive;
import java.util.Map;
import java.util.TreeMap;
import org.shunter.torchserve.forming.RequestClass;
import org.shunter.torchserve.host.FrontEnd;
import org.shunter.torchserve.page.ModelSlot;

/** What the network front end says of a model that it serves, as JSON. */
final class NetworkStatus {
    /** Per-class counters: JSON name and offset. */
    private static final Map<String, Integer> COUNTERS = new TreeMap<>();

    static {
        COUNTERS.put("arrivals", S_NETWORK_ARRIVALS);
        COUNTERS.put("answered", S_NETWORK_ANSWERED);
        COUNTERS.put("answered_late", S_NETWORK_SLO_LATE);
        COUNTERS.put("expired", S_NETWORK_EXPIRED);
        COUNTERS.put("rejected", S_NETWORK_REJECTED);
        COUNTERS.put("failed", S_NETWORK_FAILED);
        COUNTERS.put("abandoned", S_NETWORK_ABANDONED);
        COUNTERS.put("slo_met", S_NETWORK_SLO_MET);
    }

    private NetworkStatus() {}

    /** Null where it does not serve the model. */
    static JsonElement of(final ModelSlot slot, final FrontEnd frontEnd) {
        final boolean isKnown = slot.get(S_NETWORK_ENTRIES) > 0 || slot.get(S_NETWORK_NEEDS_MB) > 0;
        if (!isKnown || !frontEnd.isServing()) {
            return JsonNull.INSTANCE;
        }
        final JsonObject json = new JsonObject();
        json.addProperty("workers", slot.get(S_NETWORK_WORKERS));
        json.addProperty("entries", slot.get(S_NETWORK_ENTRIES));
        json.addProperty("free", slot.get(S_NETWORK_FREE));
        json.addProperty("queued", slot.get(S_NETWORK_QUEUED));
        json.addProperty("sessions", slot.get(S_NETWORK_SESSIONS));
        json.addProperty("credit", slot.get(S_NETWORK_CREDIT));
        json.addProperty("needs_mb", slot.get(S_NETWORK_NEEDS_MB));
        addTelemetry(json, slot);
        return json;
    }

    private static void addTelemetry(final JsonObject json, final ModelSlot slot) {
        final JsonObject shares = new JsonObject();
        final JsonObject latencies = new JsonObject();
        for (final RequestClass c : RequestClass.all()) {
            final double share = NetworkMetrics.attainment(slot, c);
            shares.add(c.label(), Double.isNaN(share) ? JsonNull.INSTANCE : new JsonPrimitive(share));
            final long answered = slot.get(ModelSlot.of(S_NETWORK_ANSWERED, c));
            final double sumMs = slot.get(ModelSlot.of(S_NETWORK_LATENCY_NS, c)) / 1e6;
            latencies.addProperty(c.label(), answered == 0 ? 0 : sumMs / answered);
        }
        json.add("slo_attainment", shares);
        json.add("mean_latency_ms", latencies);
        final JsonObject counters = new JsonObject();
        COUNTERS.forEach(
                (name, offset) -> {
                    final JsonObject byClass = new JsonObject();
                    for (final RequestClass c : RequestClass.all()) {
                        byClass.addProperty(c.label(), slot.get(ModelSlot.of(offset, c)));
                    }
                    counters.add(name, byClass);
                });
        json.add("counters", counters);
        final JsonObject sizes = new JsonObject();
        for (int bucket = 0; bucket < SIZE_BUCKETS; bucket++) {
            final long count = slot.get(S_NETWORK_BATCHES_BY_SIZE + 8 * bucket);
            if (count > 0) {
                sizes.addProperty(String.valueOf(1L << bucket), count);
            }
        }
        json.add("batches", sizes);
    }
}
