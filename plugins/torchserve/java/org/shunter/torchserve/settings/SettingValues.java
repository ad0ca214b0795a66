package org.shunter.torchserve.settings;

import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.pytorch.serve.http.BadRequestException;
import org.shunter.torchserve.forming.RequestClass;
import org.shunter.torchserve.forming.Spelling;

/** Single values of the {@code shunter:} section; a wrong one is refused by its key. */
final class SettingValues {
    private SettingValues() {}

    /** A mapping whose keys are among those allowed; null allows all. */
    static Map<String, Object> checkMap(
            final String key, final Object value, final Set<String> allowed) {
        if (!(value instanceof Map<?, ?> map)) {
            throw new BadRequestException(key + ": \"" + value + "\" is not a mapping");
        }
        final Map<String, Object> checked = new LinkedHashMap<>();
        map.forEach(
                (k, v) -> {
                    if (allowed != null && !allowed.contains(String.valueOf(k))) {
                        throw new BadRequestException(
                                key + "." + k + " is not known; allowed: " + String.join(", ", allowed)
                                        + Spelling.hint(String.valueOf(k), allowed));
                    }
                    checked.put(String.valueOf(k), v);
                });
        return checked;
    }

    /** That a value is none of those allowed. */
    static BadRequestException refusal(final String key, final Object value, final String allowed) {
        final String hint = Spelling.hint(String.valueOf(value), List.of(allowed.split(", ")));
        return new BadRequestException(key + ": \"" + value + "\"; allowed: " + allowed + hint);
    }

    static boolean flag(final String key, final Object value) {
        if (value instanceof Boolean flag) {
            return flag;
        }
        throw refusal(key, value, "true, false");
    }

    static RequestClass requestClass(final String key, final Object value) {
        final RequestClass requestClass = RequestClass.of(String.valueOf(value));
        if (requestClass == null) {
            throw new BadRequestException(
                    key + ": \"" + value + "\" is not a class; allowed: strict, best_effort"
                            + Spelling.hint(String.valueOf(value), List.of("strict", "best_effort")));
        }
        return requestClass;
    }

    static String text(final String key, final Object value) {
        if (value instanceof Map || value instanceof Collection) {
            throw new BadRequestException(key + ": \"" + value + "\" is not a text");
        }
        return value == null ? null : String.valueOf(value);
    }

    static String cores(final String key, final Object value) {
        return value == null ? null : GroupConfig.checkCores(key, text(key, value));
    }
}
