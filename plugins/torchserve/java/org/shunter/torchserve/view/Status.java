package org.shunter.torchserve.view;

import static org.shunter.torchserve.page.ControlLayout.*;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonNull;
import com.google.gson.JsonObject;
import com.google.gson.JsonPrimitive;
import java.lang.management.ManagementFactory;
import java.util.Map;
import java.util.TreeMap;
import org.pytorch.serve.wlm.Model;
import org.pytorch.serve.wlm.ModelManager;
import org.pytorch.serve.wlm.ModelVersionedRefs;
import org.shunter.torchserve.host.PoolMemory;
import org.shunter.torchserve.forming.RequestClass;
import org.shunter.torchserve.host.FrontEnd;
import org.shunter.torchserve.host.Host;
import org.shunter.torchserve.host.Supervisor;
import org.shunter.torchserve.page.ControlPage;
import org.shunter.torchserve.page.ModelSlot;
import org.shunter.torchserve.pool.ServedModel;
import org.shunter.torchserve.server.ShunterWorkLoadManager;
import org.shunter.torchserve.settings.GroupConfig;

/** The state of the plugin as JSON, for {@code GET /shunter/status} and the command line. */
public final class Status {
    /** Per-class counters: JSON name and offset. */
    private static final Map<String, Integer> COUNTERS = new TreeMap<>();

    static {
        COUNTERS.put("arrivals", S_ARRIVALS);
        COUNTERS.put("answered", S_ANSWERED);
        COUNTERS.put("answered_late", S_ANSWERED_LATE);
        COUNTERS.put("expired", S_EXPIRED);
        COUNTERS.put("rejected", S_REJECTED);
        COUNTERS.put("failed", S_FAILED);
        COUNTERS.put("abandoned", S_ABANDONED);
        COUNTERS.put("good", S_GOOD);
        COUNTERS.put("slo_met", S_SLO_MET);
    }

    private Status() {}

    /** {@code controller} is the process of the controller, {@code version} that of this jar. */
    public static JsonObject ofServer(
            final ShunterWorkLoadManager manager, final Supervisor controller, final String version) {
        final JsonObject json = new JsonObject();
        json.addProperty("version", version);
        json.addProperty("torchserve", manager.host().config().getVersion());
        json.addProperty("pid", ProcessHandle.current().pid());
        json.addProperty("runtime", manager.host().runtime().path().toString());
        json.addProperty(
                "uptime_s", ManagementFactory.getRuntimeMXBean().getUptime() / 1000.0);
        json.addProperty("draining", manager.draining());
        json.add("controller", controller(manager.host(), controller));
        json.add("devices", devices(manager.host().page()));
        json.add("front_end", frontEnd(manager));
        json.add("pools", PoolMemory.of(manager.host().runtime().path()).get("pools"));
        final JsonArray models = new JsonArray();
        final Map<String, ServedModel> sorted = new TreeMap<>();
        manager.served().forEach(model -> sorted.put(model.name(), model));
        sorted.values().forEach(model -> models.add(ofModel(model, manager)));
        json.add("models", models);
        json.add("stock_models", stockModels(sorted));
        return json;
    }

    private static JsonObject controller(final Host host, final Supervisor controller) {
        final JsonObject json = new JsonObject();
        json.addProperty("pid", controller.pid());
        json.addProperty("state", controller.state());
        json.addProperty("restarts", controller.restarts());
        json.addProperty("settings_valid", host.page().get(H_SETTINGS_INVALID) == 0);
        final long beat = host.page().get(H_CONTROLLER_HEARTBEAT_NS);
        if (beat == 0) {
            json.add("heartbeat_age_ms", JsonNull.INSTANCE);
        } else {
            json.addProperty("heartbeat_age_ms", (System.nanoTime() - beat) / 1_000_000);
        }
        return json;
    }

    /** How the changes of GPUs' instances stand; null where the controller changes none. */
    private static JsonElement devices(final ControlPage page) {
        final String layouts = page.text(H_MIG_LAYOUTS, MIG_LAYOUTS_BYTES);
        final String problem = page.text(H_MIG_PROBLEM, MIG_PROBLEM_BYTES);
        if (layouts.isEmpty() && problem.isEmpty()) {
            return JsonNull.INSTANCE;
        }
        final JsonObject json = new JsonObject();
        json.addProperty("layouts", layouts);
        json.addProperty("changing", page.get(H_MIG_CHANGING));
        json.addProperty("changes", page.get(H_MIG_CHANGES));
        json.addProperty("undone", page.get(H_MIG_UNDONE));
        json.addProperty("problem", problem);
        return json;
    }

    private static JsonObject frontEnd(final ShunterWorkLoadManager manager) {
        final FrontEnd frontEnd = manager.frontEnd();
        final ControlPage page = manager.host().page();
        final boolean serves = frontEnd.isServing();
        final JsonObject json = new JsonObject();
        json.addProperty("state", frontEnd.state());
        json.addProperty("pid", serves ? page.get(H_FRONT_END_PID) : 0);
        json.addProperty("port", serves ? page.get(H_FRONT_END_PORT) : 0);
        json.addProperty("restarts", frontEnd.restarts());
        json.addProperty("sessions", serves ? page.get(H_FRONT_END_SESSIONS) : 0);
        json.add("landing", serves ? landing(page) : JsonNull.INSTANCE);
        final long count = page.get(H_FRONT_END_RTT_COUNT);
        json.add(
                "mean_rtt_ms",
                count == 0
                        ? JsonNull.INSTANCE
                        : new JsonPrimitive(page.get(H_FRONT_END_RTT_NS) / 1e6 / count));
        final JsonObject counters = new JsonObject();
        frontEnd.counters().forEach(counters::addProperty);
        json.add("counters", counters);
        return json;
    }

    /** The pool in which payloads land; what comes when it has no room is sent again. */
    private static JsonObject landing(final ControlPage page) {
        final JsonObject json = new JsonObject();
        final long blocks = page.get(H_LANDING_BLOCKS);
        final long free = page.get(H_LANDING_FREE);
        json.addProperty("blocks", blocks);
        json.addProperty("free", free);
        json.addProperty("scarce", free <= blocks / 4);
        return json;
    }

    private static JsonArray stockModels(final Map<String, ServedModel> served) {
        final JsonArray names = new JsonArray();
        for (final Map.Entry<String, ModelVersionedRefs> refs :
                ModelManager.getInstance().getAllModels()) {
            for (final Map.Entry<String, Model> version : refs.getValue().getAllVersions()) {
                final String name = refs.getKey() + "/" + version.getKey();
                if (!served.containsKey(name) && version.getValue().getMinWorkers() > 0) {
                    names.add(name);
                }
            }
        }
        return names;
    }

    public static JsonObject ofModel(final ServedModel served, final ShunterWorkLoadManager manager) {
        final Model model = served.model();
        final ModelSlot slot = served.slot();
        final JsonObject json = new JsonObject();
        json.addProperty("name", model.getModelName());
        json.addProperty("version", model.getVersion());
        json.addProperty("default", isDefault(model));
        json.addProperty("generation", served.pool().current().id);
        json.addProperty("state", served.pool().isChanging() ? "changing" : "serving");
        json.addProperty("last_change", served.pool().lastChange());
        json.addProperty("problem", served.problem());
        json.addProperty("batch_size", served.ceiling());
        json.addProperty("max_batch_delay_ms", model.getMaxBatchDelay());
        final long sloNs = served.settings().sloNs();
        json.add("slo_ms", sloNs == 0 ? JsonNull.INSTANCE : new JsonPrimitive(sloNs / 1e6));
        json.addProperty("class", served.settings().defaultClass().label());
        json.addProperty("configuration", GroupConfig.text(served.pool().current().configuration()));
        json.addProperty("auto", served.pool().auto());
        json.addProperty("holds", served.dispatcher().holds());
        json.add(
                "preemption",
                PreemptionStatus.of(served, manager.served(), manager.host().page()));
        json.add("queue", queue(served, slot));
        final JsonObject inFlight = new JsonObject();
        inFlight.addProperty("requests", slot.get(S_IN_FLIGHT_REQUESTS));
        inFlight.addProperty("batches", slot.get(S_IN_FLIGHT_BATCHES));
        json.add("in_flight", inFlight);
        json.addProperty("waits_for_room", served.dispatcher().waitsForRoom());
        json.add("network", NetworkStatus.of(slot, manager.frontEnd()));
        json.addProperty("threshold", slot.get(S_THRESHOLD_MILLI) / 1000.0);
        json.add("slo_attainment", attainment(served));
        json.add("counters", counters(slot));
        addBatches(json, slot);
        json.add("groups", GroupStatus.of(served));
        json.add("draining", GroupStatus.draining(served));
        return json;
    }

    private static boolean isDefault(final Model model) {
        final Model chosen = ModelManager.getInstance().getDefaultModels().get(model.getModelName());
        return chosen == model;
    }

    private static JsonObject queue(final ServedModel served, final ModelSlot slot) {
        final JsonObject json = new JsonObject();
        json.addProperty("capacity", served.dispatcher().capacity());
        long oldest = 0;
        final long now = System.nanoTime();
        for (final RequestClass c : RequestClass.all()) {
            json.addProperty(c.label(), slot.get(ModelSlot.of(S_QUEUED, c)));
            final long arrival = slot.get(ModelSlot.of(S_OLDEST_ARRIVAL_NS, c));
            oldest = arrival == 0 ? oldest : Math.max(oldest, now - arrival);
        }
        json.addProperty("oldest_wait_ms", oldest / 1e6);
        return json;
    }

    private static JsonObject attainment(final ServedModel served) {
        final JsonObject json = new JsonObject();
        final long now = System.nanoTime();
        for (final RequestClass c : RequestClass.all()) {
            final double share = served.dispatcher().telemetry().window().attainment(c, now);
            json.add(c.label(), Double.isNaN(share) ? JsonNull.INSTANCE : new JsonPrimitive(share));
        }
        return json;
    }

    private static JsonObject counters(final ModelSlot slot) {
        final JsonObject json = new JsonObject();
        COUNTERS.forEach(
                (name, offset) -> {
                    final JsonObject byClass = new JsonObject();
                    for (final RequestClass c : RequestClass.all()) {
                        byClass.addProperty(c.label(), slot.get(ModelSlot.of(offset, c)));
                    }
                    json.add(name, byClass);
                });
        json.addProperty("retried", slot.get(S_RETRIED));
        json.addProperty("poisoned", slot.get(S_POISONED));
        return json;
    }

    private static void addBatches(final JsonObject json, final ModelSlot slot) {
        final JsonObject sizes = new JsonObject();
        long batches = 0;
        long serviceNs = 0;
        for (int bucket = 0; bucket < SIZE_BUCKETS; bucket++) {
            final long count = slot.get(S_BATCHES_BY_SIZE + 8 * bucket);
            batches += count;
            serviceNs += slot.get(S_SERVICE_NS_BY_SIZE + 8 * bucket);
            if (count > 0) {
                sizes.addProperty(String.valueOf(1L << bucket), count);
            }
        }
        json.add("batches", sizes);
        json.addProperty("mean_service_ms", batches == 0 ? 0 : serviceNs / 1e6 / batches);
    }
}
