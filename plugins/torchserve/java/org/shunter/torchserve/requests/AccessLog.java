package org.shunter.torchserve.requests;

import org.shunter.torchserve.events.JsonLines;
import org.shunter.torchserve.queue.Recent;

/** A line of JSON for each request that ends, in the file that {@code SHUNTER_ACCESS_LOG} names. */
public final class AccessLog {
    /** Environment: its path. */
    public static final String VARIABLE = "SHUNTER_ACCESS_LOG";

    private record Ended(String model, Recent.Line line) {}

    private final JsonLines<Ended> lines;

    private AccessLog(final JsonLines<Ended> lines) {
        this.lines = lines;
    }

    /** One that writes from now on; null where none is wanted. */
    public static AccessLog of(final String path) {
        final JsonLines<Ended> lines =
                JsonLines.of(
                        path,
                        "shunter-access-log",
                        ended -> RequestStories.json(ended.model, ended.line, Wall.now()));
        return lines == null ? null : new AccessLog(lines);
    }

    /** A request ended; called under its dispatcher's lock. */
    public void ended(final String model, final Recent.Line line) {
        lines.add(new Ended(model, line));
    }
}
