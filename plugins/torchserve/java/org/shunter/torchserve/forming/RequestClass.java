package org.shunter.torchserve.forming;

import java.util.Locale;

/** What a request asks for. The ordinal is its index in every per-class field of the page. */
public enum RequestClass {
    /** Has a latency target and goes first. */
    STRICT("strict"),
    /** Takes what strict requests leave. */
    BEST_EFFORT("best_effort");

    private static final RequestClass[] ALL = values();
    public static final int COUNT = ALL.length;

    private final String label;

    RequestClass(final String label) {
        this.label = label;
    }

    /** All classes, most urgent first; the array must not be changed. */
    public static RequestClass[] all() {
        return ALL;
    }

    /** The name in JSON, metrics and configuration. */
    public String label() {
        return label;
    }

    /** Without the spaces and tabs that HTTP allows around a value. */
    public static String stripSpace(final String text) {
        int from = 0;
        int to = text.length();
        while (from < to && isSpace(text.charAt(from))) {
            from++;
        }
        while (from < to && isSpace(text.charAt(to - 1))) {
            to--;
        }
        return text.substring(from, to);
    }

    private static boolean isSpace(final char c) {
        return c == ' ' || c == '\t';
    }

    /** The class of that name, spelled with a hyphen or an underscore in any case; null if none. */
    public static RequestClass of(final String text) {
        // Not equalsIgnoreCase: that takes letters of other alphabets for these.
        switch (stripSpace(text).toLowerCase(Locale.ROOT)) {
            case "strict":
                return STRICT;
            case "best_effort":
            case "best-effort":
                return BEST_EFFORT;
            default:
                return null;
        }
    }
}
