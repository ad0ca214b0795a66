package org.shunter.torchserve.requests;

import com.google.gson.JsonArray;
import com.google.gson.JsonNull;
import com.google.gson.JsonObject;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Comparator;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.function.Predicate;
import org.pytorch.serve.http.BadRequestException;
import org.shunter.torchserve.forming.Spelling;
import org.shunter.torchserve.pool.ServedModel;
import org.shunter.torchserve.queue.Entry;
import org.shunter.torchserve.queue.Recent;

/** {@code GET /shunter/requests}: what became of the last requests of each model. */
public final class RequestStories {
    private static final double MS = 1e6;
    private static final int SERVER_ERROR = 500;

    private record Story(ServedModel model, Recent.Line line) {}

    private RequestStories() {}

    /**
     * The last ones that are meant, the newest first.
     *
     * @param id of the only one, or null
     * @param name of a model, or null
     * @param onlyBad those that were refused, failed or late
     * @param count how many at most; null: one
     */
    public static JsonObject asked(
            final Collection<ServedModel> models,
            final String id,
            final String name,
            final boolean onlyBad,
            final String count) {
        final Set<String> known = new TreeSet<>();
        models.forEach(each -> known.add(each.model().getModelName()));
        if (name != null && !known.contains(name)) {
            throw new BadRequestException(
                    "model: \"" + name + "\" has no workers; there are: " + String.join(", ", known)
                            + Spelling.hint(name, known));
        }
        return of(
                models.stream()
                        .filter(each -> name == null || name.equals(each.model().getModelName()))
                        .toList(),
                line -> (id == null || id.equals(line.id())) && (!onlyBad || isBad(line)),
                count == null ? 1 : parsed(count));
    }

    private static int parsed(final String count) {
        if (!count.matches("[1-9]\\d{0,3}") || Integer.parseInt(count) > Recent.KEPT) {
            throw new BadRequestException(
                    "count: \"" + count + "\"; allowed: a whole number from 1 to " + Recent.KEPT);
        }
        return Integer.parseInt(count);
    }

    private static JsonObject of(
            final Collection<ServedModel> models,
            final Predicate<Recent.Line> isMeant,
            final int most) {
        final List<Story> found = new ArrayList<>();
        for (final ServedModel model : models) {
            model.dispatcher().read(() -> collect(model, isMeant, most, found));
        }
        found.sort(Comparator.comparingLong(story -> -story.line.endNs()));
        final Wall now = Wall.now();
        final JsonArray requests = new JsonArray();
        found.stream()
                .limit(most)
                .forEach(story -> requests.add(json(story.model.name(), story.line, now)));
        final JsonObject json = new JsonObject();
        json.add("requests", requests);
        return json;
    }

    /** Whether it was refused, failed, came after its deadline or nobody waited for it. */
    private static boolean isBad(final Recent.Line line) {
        return !line.why().isEmpty()
                || line.status() >= SERVER_ERROR
                || line.endNs() > line.deadlineNs();
    }

    private static void collect(
            final ServedModel model,
            final Predicate<Recent.Line> isMeant,
            final int most,
            final List<Story> found) {
        final Recent recent = model.dispatcher().telemetry().recent();
        int taken = 0;
        for (int age = 0; age < recent.size() && taken < most; age++) {
            final Recent.Line line = recent.get(age);
            if (isMeant.test(line)) {
                found.add(new Story(model, line));
                taken++;
            }
        }
    }

    /** A request as it is told. */
    static JsonObject json(final String model, final Recent.Line line, final Wall now) {
        final JsonObject json = new JsonObject();
        json.addProperty("id", line.id());
        json.addProperty("model", model);
        json.addProperty("class", line.requestClass().label());
        json.addProperty("arrived_unix_ms", now.unixMs(line.arrivalNs()));
        if (line.deadlineNs() == Entry.NEVER) {
            json.add("deadline_ms", JsonNull.INSTANCE);
        } else {
            json.addProperty("deadline_ms", (line.deadlineNs() - line.arrivalNs()) / MS);
        }
        final boolean ran = line.startNs() != 0;
        final long waitedUntil = ran ? line.startNs() : line.endNs();
        json.addProperty("waited_ms", (waitedUntil - line.arrivalNs()) / MS);
        json.addProperty("ran_ms", ran ? (line.endNs() - line.startNs()) / MS : 0);
        json.addProperty("batch", line.batch());
        if (ran) {
            json.addProperty("group", line.group());
        } else {
            json.add("group", JsonNull.INSTANCE);
        }
        json.addProperty("deaths", line.deaths());
        json.addProperty("status", line.status());
        json.addProperty("in_time", line.endNs() <= line.deadlineNs());
        json.addProperty("why", line.why());
        if (!line.trace().isEmpty()) {
            json.addProperty("traceparent", line.trace());
        }
        return json;
    }
}
