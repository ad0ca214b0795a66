package org.shunter.torchserve;

/** What a request asks for. The ordinal is its index in every per-class field of the page. */
enum RequestClass {
    /** Has a latency target and goes first. */
    STRICT("strict"),
    /** Takes what strict requests leave. */
    BEST_EFFORT("best_effort");

    private static final RequestClass[] ALL = values();
    static final int COUNT = ALL.length;

    private final String label;

    RequestClass(final String label) {
        this.label = label;
    }

    /** All classes, most urgent first; the array must not be changed. */
    static RequestClass[] all() {
        return ALL;
    }

    /** The name in JSON, metrics and configuration. */
    String label() {
        return label;
    }

    /** The class of that name, spelled with a hyphen or an underscore in any case; null if none. */
    static RequestClass of(final String text) {
        final String name = text.strip();
        if (name.equalsIgnoreCase("strict")) {
            return STRICT;
        }
        if (name.equalsIgnoreCase("best_effort") || name.equalsIgnoreCase("best-effort")) {
            return BEST_EFFORT;
        }
        return null;
    }
}
