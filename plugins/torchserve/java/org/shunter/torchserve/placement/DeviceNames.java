package org.shunter.torchserve.placement;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParseException;
import com.google.gson.JsonParser;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Consumer;
import java.util.function.Function;
import org.shunter.torchserve.page.ControlLayout;

/**
 * One name per device: what CUDA_VISIBLE_DEVICES may say, as NVML knows it. Each name is asked for
 * once; {@code allocator/devices/names.py} answers.
 */
public final class DeviceNames {
    /**
     * A GPU or a part of one.
     *
     * @param name its UUID, or what it was called where that is not known
     * @param gpu name of the GPU, its own if it is one
     * @param start its first memory slice there
     * @param size memory slices that it has
     */
    record Device(String name, String gpu, int start, int size) {
        static Device itself(final String name) {
            return new Device(name, name, 0, ControlLayout.DEVICE_SLICES);
        }
    }

    private final Function<List<String>, String> ask;
    private final Consumer<String> warn;
    private final Map<String, Device> known = new HashMap<>();

    /**
     * Names of this machine.
     *
     * @param ask what names stand for, in JSON
     * @param warn told when a name can only stand for itself
     */
    public DeviceNames(final Function<List<String>, String> ask, final Consumer<String> warn) {
        this.ask = ask;
        this.warn = warn;
    }

    /** The devices of a list as in CUDA_VISIBLE_DEVICES; none for one that hides all of them. */
    synchronized List<Device> of(final String list) {
        final List<String> names = new ArrayList<>();
        for (final String part : list.split(",")) {
            final String name = part.strip();
            if (!name.isEmpty() && !name.equals("-1")) {
                names.add(name);
            }
        }
        final List<String> unknown = new ArrayList<>(names);
        unknown.removeIf(known::containsKey);
        if (!unknown.isEmpty()) {
            learn(unknown);
        }
        final List<Device> found = new ArrayList<>();
        names.forEach(name -> found.add(known.getOrDefault(name, Device.itself(name))));
        return found;
    }

    private void learn(final List<String> names) {
        JsonElement answer;
        try {
            answer = JsonParser.parseString(ask.apply(names));
        } catch (JsonParseException e) {
            answer = null;
        }
        final boolean isList =
                answer != null && answer.isJsonArray() && answer.getAsJsonArray().size() == names.size();
        if (!isList) {
            warn.accept(
                    names
                            + " stand for themselves, because NVML cannot be asked: name each device"
                            + " always in the same way");
            names.forEach(name -> known.put(name, Device.itself(name)));
            return;
        }
        for (int i = 0; i < names.size(); i++) {
            final JsonElement each = answer.getAsJsonArray().get(i);
            if (each.isJsonObject()) {
                known.put(names.get(i), device(each.getAsJsonObject()));
            } else { // it may come to be there, so it is asked for again
                warn.accept("NVML knows no device " + names.get(i) + ", or several that begin so");
            }
        }
    }

    private static Device device(final JsonObject found) {
        return new Device(
                found.get("uuid").getAsString(),
                found.get("gpu").getAsString(),
                found.get("start").getAsInt(),
                found.get("size").getAsInt());
    }
}
