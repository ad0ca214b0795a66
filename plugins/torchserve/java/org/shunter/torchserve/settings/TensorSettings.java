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
 * workers read it themselves ({@code handlers/queue/tensor_config.py}); a mistake shall already fail the
 * registration.
 */
final class TensorSettings {
    private static final Set<String> SIDES = new TreeSet<>(List.of("inputs", "outputs"));
    private static final Set<String> FLAGS =
            new TreeSet<>(List.of("batched", "graphs", "ragged", "streamed"));
    private static final Set<String> SIZES =
            new TreeSet<>(List.of("answer_bytes", "request_bytes"));
    /** How far a client of a streamed answer may be behind. */
    private static final Set<String> BACKLOG =
            new TreeSet<>(List.of("backlog_bytes", "backlog_ms", "stall_ms"));
    /** Of models whose requests have different sizes only. */
    private static final List<String> OF_PACKED =
            List.of("request_bytes", "answer_bytes", "ragged", "buckets");
    private static final Set<String> KEYS =
            new TreeSet<>(
                    List.of(
                            "answer_bytes", "backlog_bytes", "backlog_ms", "batched", "buckets",
                            "graphs", "inputs", "outputs", "ragged", "request_bytes",
                            "stall_ms", "streamed"));
    private static final Set<String> TENSOR_KEYS = new TreeSet<>(List.of("name", "dtype", "shape"));
    private static final String BYTES = "bytes";
    /** Types that the workers' torch has, and byte strings. */
    private static final List<String> TYPES =
            List.of(
                    "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32",
                    "float64", "complex64", "complex128", "bfloat16", "float8_e4m3fn",
                    "float8_e5m2", BYTES);
    /** A dimension whose size each request chooses. */
    private static final int ANY = -1;
    private static final int MOST_DIMENSIONS = 32;
    private static final int MOST_BYTES = 1 << 30;

    private TensorSettings() {}

    /**
     * Check a parsed value.
     *
     * @throws BadRequestException naming key, value and what is allowed
     */
    static void check(final String key, final Object value) {
        if (isOfBodies(value)) {
            checkSizes(key, SettingValues.checkMap(key, value, SIZES));
            return;
        }
        final Map<String, Object> found = SettingValues.checkMap(key, value, KEYS);
        boolean packed = false;
        for (final String side : SIDES) {
            packed |= checkSide(key + "." + side, found.get(side));
        }
        for (final String flag : FLAGS) {
            if (found.containsKey(flag)) {
                packed |= SettingValues.flag(key + "." + flag, found.get(flag))
                        && (flag.equals("batched") || flag.equals("streamed"));
            }
        }
        checkSizes(key, found);
        checkBacklog(key, found);
        if (found.containsKey("buckets")) {
            checkBuckets(key + ".buckets", found.get("buckets"), found.get("ragged"));
        }
        for (final String name : packed ? List.<String>of() : OF_PACKED) {
            if (found.containsKey(name)) {
                throw new BadRequestException(
                        key + "." + name + ": all requests have the same size; it is for models of "
                                + "which a dimension is -1, a type is bytes, or requests are "
                                + "batched or answers streamed");
            }
        }
    }

    /**
     * Whether only sizes are said: of requests and answers as TorchServe has them, where another
     * server carries them as tensors.
     */
    static boolean isOfBodies(final Object value) {
        return value instanceof Map<?, ?> given && !given.isEmpty() && SIZES.containsAll(given.keySet());
    }

    private static void checkSizes(final String key, final Map<String, Object> found) {
        for (final String size : SIZES) {
            if (found.containsKey(size)
                    && !(found.get(size) instanceof Integer n && n > 0 && n <= MOST_BYTES)) {
                throw SettingValues.refusal(
                        key + "." + size, found.get(size), "bytes, from 1 to " + MOST_BYTES);
            }
        }
    }

    private static void checkBacklog(final String key, final Map<String, Object> found) {
        for (final String name : BACKLOG) {
            final Object value = found.get(name);
            if (value != null && !(value instanceof Integer n && n >= 0 && n <= MOST_BYTES)) {
                throw SettingValues.refusal(key + "." + name, value, "0 to " + MOST_BYTES);
            }
            if (value != null && !Boolean.TRUE.equals(found.get("streamed"))) {
                throw new BadRequestException(
                        key + "." + name + ": it is for models with streamed: true");
            }
        }
    }

    private static void checkBuckets(final String key, final Object value, final Object ragged) {
        int last = 0;
        for (final Object each : value instanceof List<?> sizes ? sizes : List.of(0)) {
            if (!(each instanceof Integer size) || size <= last) {
                throw SettingValues.refusal(
                        key, value, "a list of sizes, each larger than the last");
            }
            last = size;
        }
        if (last > 0 && Boolean.TRUE.equals(ragged)) {
            throw new BadRequestException(key + ": where tensors are ragged nothing is padded");
        }
    }

    /** Whether requests have different sizes of one of these. */
    private static boolean checkSide(final String key, final Object value) {
        if (!(value instanceof List<?> tensors)
                || tensors.isEmpty()
                || tensors.size() > ControlLayout.MAX_TENSORS) {
            final String most = ControlLayout.MAX_TENSORS + " tensors, each {name, dtype, shape}";
            throw SettingValues.refusal(key, value, "a list of 1 to " + most);
        }
        final Set<String> names = new HashSet<>();
        boolean packed = false;
        for (int i = 0; i < tensors.size(); i++) {
            final String name = checkTensor(key + "[" + i + "]", tensors.get(i));
            if (!names.add(name)) {
                throw new BadRequestException(key + ": \"" + name + "\" is there twice");
            }
            final Map<?, ?> tensor = (Map<?, ?>) tensors.get(i);
            packed |= tensor.get("dtype").equals(BYTES);
            packed |= ((List<?>) tensor.get("shape")).contains(ANY);
        }
        return packed;
    }

    /** The tensor's name. */
    private static String checkTensor(final String key, final Object value) {
        final Map<String, Object> tensor = SettingValues.checkMap(key, value, TENSOR_KEYS);
        if (!(tensor.get("name") instanceof String name) || name.isEmpty()) {
            throw SettingValues.refusal(key + ".name", tensor.get("name"), "a text");
        }
        if (!(tensor.get("dtype") instanceof String type) || !TYPES.contains(type)) {
            throw SettingValues.refusal(
                    key + ".dtype", tensor.get("dtype"), String.join(", ", TYPES));
        }
        if (!(tensor.get("shape") instanceof List<?> shape)
                || shape.size() > MOST_DIMENSIONS
                || !shape.stream().allMatch(n -> n instanceof Integer size && size >= ANY)) {
            throw SettingValues.refusal(
                    key + ".shape",
                    tensor.get("shape"),
                    "a list of sizes without the batch, such as [3, 224, 224]; -1 where each "
                            + "request chooses");
        }
        return name;
    }
}
