package org.shunter.torchserve.settings;

import static org.shunter.torchserve.settings.SettingValues.flag;
import static org.shunter.torchserve.settings.SettingValues.refusal;

import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import org.pytorch.serve.http.BadRequestException;
import org.shunter.torchserve.forming.RequestClass;

/**
 * Reads {@code preemptible} of a model or of a worker group: whether workers stand still for strict
 * work. How they do it they read themselves; a mistake shall already fail the registration.
 */
final class PreemptibleSettings {
    private static final String MODEL = "shunter.preemptible";
    private static final String SEGMENT = "segment_ms";
    private static final String BOUNDARIES = "boundaries";
    private static final String DROP = "drop";
    private static final Set<String> KEYS = new TreeSet<>(List.of(SEGMENT, BOUNDARIES, DROP));
    private static final List<String> BOUNDARY_KINDS = List.of("modules", "fx");
    private static final double LONGEST_SEGMENT_MS = 1000;

    private PreemptibleSettings() {}

    /**
     * What a model's section says for all its worker groups; null: it depends on their classes.
     *
     * @param section the section, checked for unknown keys
     * @throws BadRequestException naming key, value and what is allowed
     */
    static Boolean ofModel(final Map<String, Object> section, final RequestClass defaultClass) {
        final Object value = section.get("preemptible");
        if (value == null) {
            final boolean yields =
                    defaultClass == RequestClass.BEST_EFFORT && !givesClasses(section.get("groups"));
            return yields ? Boolean.TRUE : null;
        }
        if (value instanceof Boolean flag) {
            return flag;
        }
        if (!(value instanceof Map)) {
            throw refusal(MODEL, value, "true, false or a mapping of " + String.join(", ", KEYS));
        }
        check(SettingValues.checkMap(MODEL, value, KEYS));
        return true;
    }

    /** Whether a model's section says that a batch which stands still may begin anew. */
    static boolean drops(final Map<String, Object> section) {
        return section.get("preemptible") instanceof Map<?, ?> map
                && Boolean.TRUE.equals(map.get(DROP));
    }

    private static boolean givesClasses(final Object groups) {
        return groups instanceof List<?> list
                && list.stream()
                        .anyMatch(each -> each instanceof Map<?, ?> map && map.containsKey("classes"));
    }

    private static void check(final Map<String, Object> map) {
        final Object segment = map.get(SEGMENT);
        final double ms = segment instanceof Number number ? number.doubleValue() : Double.NaN;
        if (map.containsKey(SEGMENT) && !(ms > 0 && ms <= LONGEST_SEGMENT_MS)) {
            throw refusal(MODEL + "." + SEGMENT, segment, "milliseconds above 0 and at most 1000");
        }
        final Object kind = map.get(BOUNDARIES);
        if (map.containsKey(BOUNDARIES) && !BOUNDARY_KINDS.contains(kind)) {
            throw refusal(MODEL + "." + BOUNDARIES, kind, String.join(", ", BOUNDARY_KINDS));
        }
        if (map.containsKey(DROP)) {
            flag(MODEL + "." + DROP, map.get(DROP));
        }
    }

    /** What a worker group says of itself; null: nothing. */
    static Boolean ofGroup(final String key, final Object value) {
        return value == null ? null : (Boolean) flag(key, value);
    }
}
