package org.shunter.torchserve.forming;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.regex.Pattern;
import org.pytorch.serve.http.BadRequestException;
import org.pytorch.serve.util.messages.InputParameter;
import org.pytorch.serve.util.messages.RequestInput;

/**
 * The class and relative deadline that a request states. Twin of {@code batching/forming/classes.py}.
 *
 * @param requestClass the class, or null when the request leaves it to the model
 * @param deadlineNs nanoseconds after arrival, or 0 when the request states none
 * @param idempotent whether it may run twice, or null when the request leaves it to the model
 */
public record RequestTerms(RequestClass requestClass, long deadlineNs, Boolean idempotent) {
    public static final String CLASS_KEY = "x-shunter-class";
    static final String DEADLINE_KEY = "x-shunter-deadline-ms";
    public static final String IDEMPOTENT_KEY = "x-shunter-idempotent";
    /** No term of the request: {@link StrictClaims} takes it out before. */
    public static final String STRICT_KEY = "x-shunter-strict-key";
    /** Keys that begin so are ours; a misspelt one must not pass in silence. */
    private static final String PREFIX = "x-shunter-";
    private static final String[] KEYS = {CLASS_KEY, DEADLINE_KEY, IDEMPOTENT_KEY};
    private static final double MAX_DEADLINE_MS = 86_400_000.0;
    private static final Pattern DECIMAL = Pattern.compile("[0-9]{1,9}(\\.[0-9]{1,9})?");
    private static final RequestTerms NONE = new RequestTerms(null, 0, null);

    /** Terms in HTTP headers; names are compared without case. */
    public static RequestTerms ofHeaders(final Map<String, String> headers) {
        String[] texts = null;
        for (final Map.Entry<String, String> header : headers.entrySet()) {
            final int key = key(header.getKey());
            if (key >= 0) {
                texts = texts == null ? new String[KEYS.length] : texts;
                texts[key] = header.getValue();
            } else {
                checkForeign(header.getKey());
            }
        }
        return texts == null ? NONE : of(texts[0], texts[1], texts[2]);
    }

    private static void checkForeign(final String name) {
        if (name.regionMatches(true, 0, PREFIX, 0, PREFIX.length())) {
            final List<String> allowed = new ArrayList<>(List.of(KEYS));
            allowed.add(STRICT_KEY);
            throw new BadRequestException(
                    "\"" + name + "\" is unknown; allowed: " + String.join(", ", allowed)
                            + Spelling.hint(name, allowed));
        }
    }

    /** Terms in the entries of a gRPC input map; they are removed, so that no handler sees them. */
    public static RequestTerms takeFrom(final RequestInput input) {
        String[] texts = null;
        for (final Iterator<InputParameter> i = input.getParameters().iterator(); i.hasNext(); ) {
            final InputParameter parameter = i.next();
            final int key = key(parameter.getName());
            if (key >= 0) {
                texts = texts == null ? new String[KEYS.length] : texts;
                texts[key] = new String(parameter.getValue(), StandardCharsets.UTF_8);
                i.remove();
            } else {
                checkForeign(parameter.getName());
            }
        }
        return texts == null ? NONE : of(texts[0], texts[1], texts[2]);
    }

    private static int key(final String name) {
        for (int i = 0; i < KEYS.length; i++) {
            if (name.length() == KEYS[i].length() && name.equalsIgnoreCase(KEYS[i])) {
                return i;
            }
        }
        return -1;
    }

    /** Terms of texts, any of which may be null. */
    static RequestTerms of(
            final String classText, final String deadlineText, final String idempotentText) {
        return new RequestTerms(
                classText == null ? null : checkClass(classText),
                deadlineText == null ? 0 : checkDeadlineNs(deadlineText),
                idempotentText == null ? null : checkIdempotent(idempotentText));
    }

    /** Whether the request may run again; {@code retry}: whether its model says so. */
    public Rerun rerun(final boolean retry) {
        if (idempotent == null) {
            return retry ? Rerun.AFTER_DEATH : Rerun.NEVER;
        }
        return idempotent ? Rerun.ALWAYS : Rerun.NEVER;
    }

    private static boolean checkIdempotent(final String text) {
        switch (RequestClass.stripSpace(text).toLowerCase(Locale.ROOT)) {
            case "true":
                return true;
            case "false":
                return false;
            default:
                throw new BadRequestException(
                        IDEMPOTENT_KEY + ": \"" + text + "\" is not known; allowed: true, false");
        }
    }

    private static RequestClass checkClass(final String text) {
        final RequestClass requestClass = RequestClass.of(text);
        if (requestClass == null) {
            throw new BadRequestException(
                    CLASS_KEY + ": \"" + text + "\" is not a class; allowed: strict, best-effort"
                            + Spelling.hint(text, List.of("strict", "best-effort")));
        }
        return requestClass;
    }

    private static long checkDeadlineNs(final String text) {
        final String number = RequestClass.stripSpace(text);
        final double ms = DECIMAL.matcher(number).matches() ? Double.parseDouble(number) : 0;
        if (!(ms > 0) || ms > MAX_DEADLINE_MS) {
            throw new BadRequestException(
                    DEADLINE_KEY + ": \"" + text + "\" is not a deadline; allowed: a number of"
                            + " milliseconds above 0 and at most 86400000");
        }
        return Math.max(1, (long) (ms * 1e6));
    }
}
