package org.shunter.torchserve.view;

import static org.shunter.torchserve.page.ControlLayout.*;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonNull;
import com.google.gson.JsonObject;
import java.util.Collection;
import org.shunter.torchserve.page.ControlPage;
import org.shunter.torchserve.page.ModelSlot;
import org.shunter.torchserve.pool.ServedModel;

/** How a model gives way to strict work, as JSON; {@code plugins/view/page_status.py} has the same. */
final class PreemptionStatus {
    private static final String[] STATES = {"running", "yielding", "parked", "restoring"};

    private PreemptionStatus() {}

    /** What the model's workers say of themselves, or null when none of them gives way. */
    static JsonElement of(
            final ServedModel model, final Collection<ServedModel> all, final ControlPage page) {
        if (model.pool().current().groups.stream().noneMatch(group -> group.place.yields())) {
            return JsonNull.INSTANCE;
        }
        final JsonObject json = new JsonObject();
        final JsonArray runners = new JsonArray();
        for (int i = 0; i < RUNNER_COUNT; i++) {
            final int line = RUNNERS_OFFSET + i * RUNNER_SIZE;
            final long pid = page.get(line + R_RUNNER_PID);
            if (pid > 0
                    && page.get(line + R_RUNNER_SLOT) == model.slot().index()
                    && ProcessHandle.of(pid).isPresent()) {
                runners.add(runner(page, line));
            }
        }
        json.add("runners", runners);
        json.add("not_beside", notBeside(model.slot(), all));
        return json;
    }

    private static JsonObject runner(final ControlPage page, final int line) {
        final int state = (int) page.get(line + R_RUNNER_STATE);
        final JsonObject json = new JsonObject();
        json.addProperty("pid", page.get(line + R_RUNNER_PID));
        json.addProperty("state", STATES[Math.max(0, Math.min(state, STATES.length - 1))]);
        final long sinceNs = page.get(line + R_RUNNER_SINCE_NS);
        json.addProperty("since_ms", (System.nanoTime() - sinceNs) / 1e6);
        json.addProperty("batches", page.get(line + R_BATCHES));
        json.addProperty("preemptions", page.get(line + R_PREEMPTIONS));
        json.addProperty("parked_ms", page.get(line + R_PARKED_NS) / 1e6);
        json.addProperty("longest_yield_ms", page.get(line + R_YIELD_WORST_NS) / 1e6);
        json.addProperty("drops", page.get(line + R_DROPS));
        return json;
    }

    /** Beside whose strict work it must not run; null while the controller has not said it. */
    private static JsonElement notBeside(final ModelSlot slot, final Collection<ServedModel> all) {
        if (slot.get(S_PADDING_KNOWN) != 1) {
            return JsonNull.INSTANCE;
        }
        final JsonArray names = new JsonArray();
        for (final ServedModel other : all) {
            final int bit = other.slot().index();
            if (bit >= 0 && (slot.get(S_BESIDE + bit / 64 * 8) >> bit % 64 & 1) == 0) {
                names.add(other.name());
            }
        }
        return names;
    }
}
