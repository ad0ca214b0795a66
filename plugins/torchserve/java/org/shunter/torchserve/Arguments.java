package org.shunter.torchserve;

import java.util.List;
import org.pytorch.serve.http.BadRequestException;
import org.pytorch.serve.servingsdk.http.Request;
import org.shunter.torchserve.forming.Spelling;

/** Arguments of our endpoints, which come in the query. */
final class Arguments {
    private Arguments() {}

    /** Refuse what is not known: what it was to change would stay as it is. */
    static void check(final Request request, final List<String> allowed) {
        for (final String name : request.getParameterMap().keySet()) {
            if (!allowed.contains(name)) {
                throw new BadRequestException(
                        "\"" + name + "\" is unknown; allowed: " + String.join(", ", allowed)
                                + Spelling.hint(name, allowed));
            }
        }
    }

    /** The first of that name, or null. */
    static String of(final Request request, final String name) {
        final List<String> values = request.getParameterMap().get(name);
        return values == null || values.isEmpty() ? null : values.get(0);
    }

    /** Whether it says true. */
    static boolean flag(final String key, final String value) {
        if (!value.equals("true") && !value.equals("false")) {
            throw new BadRequestException(key + ": \"" + value + "\"; allowed: true, false");
        }
        return value.equals("true");
    }
}
