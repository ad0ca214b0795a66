package org.shunter.torchserve;

import java.nio.charset.StandardCharsets;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.regex.Pattern;
import org.pytorch.serve.http.BadRequestException;
import org.pytorch.serve.util.messages.InputParameter;
import org.pytorch.serve.util.messages.RequestInput;

/**
 * The class and relative deadline that a request states. Twin of {@code batching/classes.py}.
 *
 * @param requestClass the class, or null when the request leaves it to the model
 * @param deadlineNs nanoseconds after arrival, or 0 when the request states none
 */
record RequestTerms(RequestClass requestClass, long deadlineNs) {
    static final String CLASS_KEY = "x-shunter-class";
    static final String DEADLINE_KEY = "x-shunter-deadline-ms";
    /** Keys that begin so are ours; a misspelt one must not pass in silence. */
    private static final String PREFIX = "x-shunter-";
    private static final double MAX_DEADLINE_MS = 86_400_000.0;
    private static final Pattern DECIMAL = Pattern.compile("[0-9]{1,9}(\\.[0-9]{1,9})?");
    private static final RequestTerms NONE = new RequestTerms(null, 0);

    /** Terms in HTTP headers; names are compared without case. */
    static RequestTerms ofHeaders(final Map<String, String> headers) {
        String classText = null;
        String deadlineText = null;
        for (final Map.Entry<String, String> header : headers.entrySet()) {
            final String name = header.getKey();
            if (name.length() == CLASS_KEY.length() && name.equalsIgnoreCase(CLASS_KEY)) {
                classText = header.getValue();
            } else if (name.length() == DEADLINE_KEY.length()
                    && name.equalsIgnoreCase(DEADLINE_KEY)) {
                deadlineText = header.getValue();
            } else {
                checkForeign(name);
            }
        }
        return of(classText, deadlineText);
    }

    private static void checkForeign(final String name) {
        if (name.regionMatches(true, 0, PREFIX, 0, PREFIX.length())) {
            throw new BadRequestException(
                    "\"" + name + "\" is unknown; allowed: " + CLASS_KEY + ", " + DEADLINE_KEY);
        }
    }

    /** Terms in the entries of a gRPC input map; they are removed, so that no handler sees them. */
    static RequestTerms takeFrom(final RequestInput input) {
        final List<InputParameter> parameters = input.getParameters();
        String classText = null;
        String deadlineText = null;
        for (final Iterator<InputParameter> i = parameters.iterator(); i.hasNext(); ) {
            final InputParameter parameter = i.next();
            if (parameter.getName().equalsIgnoreCase(CLASS_KEY)) {
                classText = new String(parameter.getValue(), StandardCharsets.UTF_8);
                i.remove();
            } else if (parameter.getName().equalsIgnoreCase(DEADLINE_KEY)) {
                deadlineText = new String(parameter.getValue(), StandardCharsets.UTF_8);
                i.remove();
            } else {
                checkForeign(parameter.getName());
            }
        }
        return of(classText, deadlineText);
    }

    /** Terms of two texts, either of which may be null. */
    static RequestTerms of(final String classText, final String deadlineText) {
        if (classText == null && deadlineText == null) {
            return NONE;
        }
        return new RequestTerms(
                classText == null ? null : checkClass(classText),
                deadlineText == null ? 0 : checkDeadlineNs(deadlineText));
    }

    private static RequestClass checkClass(final String text) {
        final RequestClass requestClass = RequestClass.of(text);
        if (requestClass == null) {
            throw new BadRequestException(
                    CLASS_KEY + ": \"" + text + "\" is not a class; allowed: strict, best-effort");
        }
        return requestClass;
    }

    private static long checkDeadlineNs(final String text) {
        final String number = RequestClass.stripSpace(text);
        final double ms = DECIMAL.matcher(number).matches() ? Double.parseDouble(number) : 0;
        if (!(ms > 0) || ms > MAX_DEADLINE_MS) {
            throw new BadRequestException(
                    DEADLINE_KEY
                            + ": \""
                            + text
                            + "\" is not a deadline; allowed: a number of milliseconds above 0"
                            + " and at most 86400000");
        }
        return Math.max(1, (long) (ms * 1e6));
    }
}
