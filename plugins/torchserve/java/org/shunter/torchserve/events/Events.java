package org.shunter.torchserve.events;

import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import java.util.ArrayDeque;
import java.util.Locale;
import org.pytorch.serve.http.BadRequestException;

/**
 * What happened in this server lately, and why: {@code GET /shunter/events}, and lines of JSON in the
 * file that {@code SHUNTER_EVENT_LOG} names. Twin of {@code plugins/events.py}.
 */
public final class Events {
    /** Environment: the path of a file for them. */
    public static final String VARIABLE = "SHUNTER_EVENT_LOG";
    /** So many can be asked for. */
    public static final int KEPT = 512;

    private static final long SAME_MS = 500;

    /**
     * One of them.
     *
     * @param number counts up from 1
     * @param about a model version, or a part of the server
     * @param text what happened, and why
     */
    private record Event(long number, long unixMs, Level level, String about, String text) {
        boolean says(final String of, final String what) {
            return about.equals(of) && text.equals(what);
        }

        JsonObject json() {
            final JsonObject json = new JsonObject();
            json.addProperty("number", number);
            json.addProperty("unix_ms", unixMs);
            json.addProperty("level", level.name().toLowerCase(Locale.ROOT));
            json.addProperty("about", about);
            json.addProperty("text", text);
            return json;
        }
    }

    private final ArrayDeque<Event> kept = new ArrayDeque<>();
    private final JsonLines<Event> file;
    private long count;

    /** {@code path}: of the file; null or empty: none is wanted. */
    public Events(final String path) {
        this.file = JsonLines.of(path, "shunter-events", Event::json);
    }

    /** It happened just now. */
    public synchronized void tell(final Level level, final String about, final String text) {
        final long now = System.currentTimeMillis();
        final Event last = kept.peekLast();
        if (last != null && last.says(about, text) && now - last.unixMs < SAME_MS) {
            return; // a worker that does not load says why, and then ends of it
        }
        final Event event = new Event(++count, now, level, about, text);
        kept.add(event);
        if (kept.size() > KEPT) {
            kept.remove();
        }
        if (file != null) {
            file.add(event);
        }
    }

    /** Those after one of that number, the oldest first; null: all that are kept. */
    public synchronized JsonObject after(final String number) {
        if (number != null && !number.matches("\\d{1,18}")) {
            throw new BadRequestException("after: \"" + number + "\"; allowed: a number of an event");
        }
        final long last = number == null ? 0 : Long.parseLong(number);
        final JsonArray events = new JsonArray();
        kept.stream().filter(each -> each.number > last).forEach(each -> events.add(each.json()));
        final JsonObject json = new JsonObject();
        json.add("events", events);
        return json;
    }
}
