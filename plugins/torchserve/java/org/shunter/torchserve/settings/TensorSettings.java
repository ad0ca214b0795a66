package org.shunter.torchserve.settings;

import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import org.pytorch.serve.http.BadRequestException;
import org.shunter.torchserve.page.ControlLayout;

/**
 * Checks {@code shunter.tensors}: what the network front end lays into memory for a model. Its
 * workers read it themselves ({@code handlers/queue/tensor_queue.py}); a mistake shall already fail the
 * registration.
 */
final class TensorSettings {
    private static final Set<String> SIDES = new TreeSet<>(List.of("inputs", "outputs"));
    private static final Set<String> KEYS = new TreeSet<>(List.of("name", "dtype", "shape"));
    /** Types that numpy and torch both have. */
    private static final List<String> TYPES =
            List.of(
                    "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32",
                    "float64", "complex64", "complex128");

    private TensorSettings() {}

    /**
     * Check a parsed value.
     *
     * @throws BadRequestException naming key, value and what is allowed
     */
    static void check(final String key, final Object value) {
        final Map<String, Object> sides = SettingValues.checkMap(key, value, SIDES);
        for (final String side : SIDES) {
            checkSide(key + "." + side, sides.get(side));
        }
    }

    private static void checkSide(final String key, final Object value) {
        if (!(value instanceof List<?> tensors)
                || tensors.isEmpty()
                || tensors.size() > ControlLayout.MAX_TENSORS) {
            final String most = ControlLayout.MAX_TENSORS + " tensors, each {name, dtype, shape}";
            throw SettingValues.refusal(key, value, "a list of 1 to " + most);
        }
        final Set<String> names = new HashSet<>();
        for (int i = 0; i < tensors.size(); i++) {
            final String name = checkTensor(key + "[" + i + "]", tensors.get(i));
            if (!names.add(name)) {
                throw new BadRequestException(key + ": \"" + name + "\" is there twice");
            }
        }
    }

    /** The tensor's name. */
    private static String checkTensor(final String key, final Object value) {
        final Map<String, Object> tensor = SettingValues.checkMap(key, value, KEYS);
        if (!(tensor.get("name") instanceof String name) || name.isEmpty()) {
            throw SettingValues.refusal(key + ".name", tensor.get("name"), "a text");
        }
        if (!(tensor.get("dtype") instanceof String type) || !TYPES.contains(type)) {
            throw SettingValues.refusal(
                    key + ".dtype", tensor.get("dtype"), String.join(", ", TYPES));
        }
        if (!(tensor.get("shape") instanceof List<?> shape)
                || !shape.stream().allMatch(n -> n instanceof Integer size && size >= 0)) {
            throw SettingValues.refusal(
                    key + ".shape",
                    tensor.get("shape"),
                    "a list of sizes without the batch, such as [3, 224, 224]");
        }
        return name;
    }
}
