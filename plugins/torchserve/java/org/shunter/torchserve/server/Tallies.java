package org.shunter.torchserve.server;

import static org.shunter.torchserve.page.ControlLayout.S_EXPIRED;
import static org.shunter.torchserve.page.ControlLayout.S_POISONED;
import static org.shunter.torchserve.page.ControlLayout.S_REJECTED;
import static org.shunter.torchserve.page.ControlLayout.S_RETRIED;

import com.google.gson.JsonObject;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.Function;
import org.shunter.torchserve.events.Events;
import org.shunter.torchserve.events.Level;
import org.shunter.torchserve.forming.RequestClass;
import org.shunter.torchserve.page.ModelSlot;
import org.shunter.torchserve.pool.ServedModel;
import org.shunter.torchserve.queue.Telemetry;

/**
 * Tells of what is too frequent to be told one by one, once a second at most: requests that were
 * dropped, refused or run again, and weights that left a cache. Only the timer's thread calls it.
 */
final class Tallies {
    /** So many characters of a reason are told. */
    private static final int LONGEST = 500;

    private final Events events;
    private final Map<Object, Long> before = new HashMap<>();

    Tallies(final Events events) {
        this.events = events;
    }

    /** What is counted, of whom. */
    private record Key(Object of, String what) {}

    private long more(final Object of, final String what, final long now) {
        final Long last = before.put(new Key(of, what), now);
        return last == null ? now : now - last;
    }

    /** Models as they are now; those that are gone are forgotten. */
    void look(final List<ServedModel> models, final List<JsonObject> pools) {
        final Set<ServedModel> there = Set.copyOf(models);
        before.keySet()
                .removeIf(k -> k instanceof Key key && key.of instanceof ServedModel m && !there.contains(m));
        models.forEach(this::look);
        pools.forEach(this::lookAtPool);
    }

    private void look(final ServedModel model) {
        final ModelSlot slot = model.slot();
        final Telemetry telemetry = model.dispatcher().telemetry();
        for (final RequestClass kind : RequestClass.all()) {
            final long expired = more(model, "expired" + kind, slot.get(ModelSlot.of(S_EXPIRED, kind)));
            final long refused = more(model, "rejected" + kind, slot.get(ModelSlot.of(S_REJECTED, kind)));
            if (expired > 0) {
                tell(model, expired, kind, "dropped: too late to be in time", telemetry::whyExpired);
            }
            if (refused > 0) {
                tell(model, refused, kind, "refused", telemetry::whyRejected);
            }
        }
        final long again = more(model, "retried", slot.get(S_RETRIED));
        if (again > 0) {
            events.tell(Level.WARNING, model.name(), again(again));
        }
        final long poisoned = more(model, "poisoned", slot.get(S_POISONED));
        if (poisoned > 0) {
            events.tell(Level.ERROR, model.name(), givenUp(poisoned));
        }
    }

    static String again(final long count) {
        return count == 1
                ? "1 request ran again because its worker died"
                : count + " requests ran again because their worker died";
    }

    static String givenUp(final long count) {
        return count == 1
                ? "1 request was given up: it ended two workers"
                : count + " requests were given up: each ended two workers";
    }

    private void tell(
            final ServedModel model,
            final long count,
            final RequestClass kind,
            final String what,
            final Function<RequestClass, String> reason) {
        final String[] why = new String[1];
        model.dispatcher().read(() -> why[0] = reason.apply(kind));
        events.tell(Level.WARNING, model.name(), unserved(count, kind, what, why[0]));
    }

    /** {@code why}: what the last one was told; it may quote a client, at any length. */
    static String unserved(
            final long count, final RequestClass kind, final String what, final String why) {
        final String were = count == 1 ? " request was " : " requests were ";
        final String text = count + " " + kind.label() + were + what;
        if (why == null) {
            return text;
        }
        final boolean isLong = why.length() > LONGEST;
        return text + "; the last one: " + (isLong ? why.substring(0, LONGEST) + "..." : why);
    }

    private void lookAtPool(final JsonObject pool) {
        final int number = pool.get("pool").getAsInt();
        final String about = "pool process " + number;
        final Long pid = before.put(about, pool.get("pid").getAsLong());
        if (pid != null && pid != pool.get("pid").getAsLong()) {
            before.remove(new Key(about, "evictions"));
            events.tell(Level.ERROR, about, "process " + pid + " ended; another took its place");
        }
        final long evicted =
                pool.has("evictions") ? more(about, "evictions", pool.get("evictions").getAsLong()) : 0;
        if (evicted > 0) {
            final String text = evicted + " times weights of a model left for those of another";
            events.tell(Level.INFO, about, text);
        }
    }
}
