package org.shunter.torchserve.view;

import static org.shunter.torchserve.page.ControlLayout.*;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonNull;
import com.google.gson.JsonObject;
import com.google.gson.JsonPrimitive;
import java.util.ArrayList;
import java.util.List;
import org.shunter.torchserve.forming.RequestClass;
import org.shunter.torchserve.page.ModelSlot;
import org.shunter.torchserve.pool.Generation;
import org.shunter.torchserve.pool.ServedModel;
import org.shunter.torchserve.pool.WorkerPool;
import org.shunter.torchserve.queue.WorkerGroup;
import org.shunter.torchserve.settings.GroupConfig;
import org.shunter.torchserve.worker.Worker;

/** The worker groups of a model as JSON. */
final class GroupStatus {
    private GroupStatus() {}

    /** Those that serve, and those that are being started. */
    static JsonArray of(final ServedModel served) {
        final JsonArray groups = new JsonArray();
        addGroups(groups, served, served.pool().current(), "serving");
        final Generation next = served.pool().next();
        if (next != null && next != served.pool().current()) {
            addGroups(groups, served, next, "starting");
        }
        addGroups(groups, served, served.pool().network(), "serving");
        return groups;
    }

    /** What is known of the latency of a group's batches, or null. */
    private static JsonElement latency(final ModelSlot slot, final int group) {
        if (slot.get(ModelSlot.ofGroup(S_GROUP_FITTED, group)) == 0) {
            return JsonNull.INSTANCE;
        }
        final JsonObject json = new JsonObject();
        json.addProperty("fixed_ms", slot.get(ModelSlot.ofGroup(S_GROUP_FIXED_NS, group)) / 1e6);
        json.addProperty(
                "per_request_ms", slot.get(ModelSlot.ofGroup(S_GROUP_PER_REQUEST_NS, group)) / 1e6);
        json.addProperty("error_ms", slot.get(ModelSlot.ofGroup(S_GROUP_ERROR_NS, group)) / 1e6);
        return json;
    }

    /** Of requests with a deadline that its workers answered, by class. */
    private static JsonObject slo(final WorkerGroup<Worker> group) {
        final JsonObject json = new JsonObject();
        final long now = System.nanoTime();
        for (final RequestClass c : RequestClass.all()) {
            final double share = group.sloWindow.attainment(c, now);
            final JsonObject mine = new JsonObject();
            mine.add(
                    "attainment",
                    Double.isNaN(share) ? JsonNull.INSTANCE : new JsonPrimitive(share));
            mine.addProperty("met", group.sloWindow.met(c));
            mine.addProperty("missed", group.sloWindow.missed(c));
            json.add(c.label(), mine);
        }
        return json;
    }

    private static void addGroups(
            final JsonArray groups,
            final ServedModel served,
            final Generation generation,
            final String state) {
        for (final WorkerGroup<Worker> group : generation.groups) {
            final GroupConfig config = group.config();
            final JsonObject json = new JsonObject();
            json.addProperty("generation", generation.id);
            json.addProperty("state", state);
            final JsonArray classes = new JsonArray();
            config.classes().forEach(c -> classes.add(c.label()));
            json.add("classes", classes);
            json.addProperty("instances", config.instances());
            json.add(
                    "threads",
                    config.threads() == 0
                            ? JsonNull.INSTANCE
                            : new JsonPrimitive(config.threads()));
            json.addProperty("batch", config.batch());
            json.addProperty("cores", config.cores());
            json.addProperty("device", served.deviceOf(config));
            json.addProperty("slice", served.sliceOf(group));
            json.add("slo", slo(group));
            json.addProperty("yields", group.place.yields());
            json.addProperty("front_end", group.isNetwork ? "network" : "jvm");
            json.add(
                    "latency",
                    generation == served.pool().current()
                            ? latency(served.slot(), group.index)
                            : JsonNull.INSTANCE);
            final JsonArray workers = new JsonArray();
            group.workers.forEach(worker -> workers.add(worker(worker)));
            json.add("workers", workers);
            groups.add(json);
        }
    }

    /** Workers that get nothing any more and finish what they have. */
    static JsonArray draining(final ServedModel served) {
        final JsonArray workers = new JsonArray();
        final WorkerPool pool = served.pool();
        final List<Worker> staying = new ArrayList<>(pool.current().workers());
        staying.addAll(pool.network().workers());
        pool.workers().stream()
                .filter(worker -> !staying.contains(worker))
                .forEach(worker -> workers.add(worker(worker)));
        return workers;
    }

    private static JsonObject worker(final Worker worker) {
        final JsonObject json = new JsonObject();
        json.addProperty("id", String.valueOf(worker.address.port()));
        json.addProperty("pid", worker.pid());
        json.addProperty("state", worker.state.name());
        json.addProperty("in_flight", worker.held);
        json.add(
                "pool",
                worker.room == null ? JsonNull.INSTANCE : new JsonPrimitive(worker.room.number));
        json.addProperty("restarts", worker.restarts);
        json.addProperty("problem", worker.problem());
        return json;
    }
}
