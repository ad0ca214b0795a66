package org.shunter.torchserve.forming;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.function.Function;
import org.pytorch.serve.http.BadRequestException;
import org.shunter.torchserve.page.ModelSlot;

/** Recomputes the golden tables with the classes of the jar, for the tests in Python. */
public final class GoldenTool {
    private static boolean wrong;

    private GoldenTool() {}

    /** {@code (threshold|latency|release|classes) FILE}; status 1 and the rows that are wrong. */
    public static void main(final String[] args) throws Exception {
        final Path file = Path.of(args[1]);
        switch (args[0]) {
            case "threshold":
                check(file, "step", GoldenTool::step);
                check(file, "adaptive", GoldenTool::adaptive);
                check(
                        file,
                        "hold_ns",
                        r -> AdaptiveThreshold.holdNs(r.get(0).getAsDouble(), r.get(1).getAsLong()));
                break;
            case "latency":
                check(file, "fit", GoldenTool::fit);
                check(file, "time_bucket", r -> ModelSlot.timeBucket(r.get(0).getAsLong()));
                break;
            case "release":
                check(file, "should_release", GoldenTool::shouldRelease);
                check(file, "split", GoldenTool::split);
                check(file, "split_by_latency", GoldenTool::splitByLatency);
                check(file, "fit_deadlines", GoldenTool::fitDeadlines);
                check(file, "is_too_late", r -> Deadlines.isTooLate(at(r, 0), at(r, 1), at(r, 2)));
                check(
                        file,
                        "too_late_at_ns",
                        r -> Deadlines.tooLateAtNs(at(r, 0), at(r, 1), at(r, 2)));
                check(file, "predicted_wait_ns", GoldenTool::predictedWait);
                check(
                        file,
                        "staggered_size",
                        r ->
                                ReleaseRule.staggeredSize(
                                        r.get(0).getAsInt(),
                                        r.get(1).getAsLong(),
                                        r.get(2).getAsLong(),
                                        longs(r.get(3))));
                check(file, "may_send_ahead", GoldenTool::maySendAhead);
                check(file, "wake_after_us", GoldenTool::wakeAfter);
                break;
            case "classes":
                checkTerms(file, "class", GoldenTool::requestClass);
                checkTerms(file, "deadline", GoldenTool::deadline);
                break;
            default:
                throw new IllegalArgumentException(args[0]);
        }
        System.exit(wrong ? 1 : 0);
    }

    private static JsonArray rows(final Path file, final String table) throws IOException {
        final String text = new String(Files.readAllBytes(file), StandardCharsets.UTF_8);
        final JsonObject document = JsonParser.parseString(text).getAsJsonObject();
        return document.getAsJsonObject(table).getAsJsonArray("rows");
    }

    private static void check(
            final Path file, final String table, final Function<JsonArray, Object> rule)
            throws IOException {
        for (final JsonElement element : rows(file, table)) {
            final JsonArray row = element.getAsJsonArray();
            final JsonElement expected = row.get(row.size() - 1);
            final Object found = rule.apply(row);
            final boolean same =
                    found instanceof double[] numbers
                            ? Arrays.equals(numbers, doubles(expected))
                            : found instanceof Double
                                    ? found.equals(expected.getAsDouble())
                                    : String.valueOf(found).equals(expected.toString());
            fail(!same, table, row, found);
        }
    }

    private static void checkTerms(
            final Path file, final String table, final Function<String, Long> rule)
            throws IOException {
        for (final JsonElement element : rows(file, table)) {
            final JsonArray row = element.getAsJsonArray();
            Long value = null;
            String message = null;
            try {
                value = rule.apply(row.get(0).getAsString());
            } catch (BadRequestException e) {
                message = e.getMessage();
            }
            final Long expected = row.get(1).isJsonNull() ? null : (Long) row.get(1).getAsLong();
            final String text = row.get(2).isJsonNull() ? null : row.get(2).getAsString();
            final boolean same =
                    java.util.Objects.equals(value, expected)
                            && java.util.Objects.equals(message, text);
            fail(!same, table, row, value + " " + message);
        }
    }

    /** Numbers of a list of lists, or of a list, one after another. */
    private static double[] doubles(final JsonElement lists) {
        final List<Double> numbers = new ArrayList<>();
        for (final JsonElement list : lists.getAsJsonArray()) {
            if (list.isJsonArray()) {
                list.getAsJsonArray().forEach(number -> numbers.add(number.getAsDouble()));
            } else {
                numbers.add(list.getAsDouble());
            }
        }
        return numbers.stream().mapToDouble(Double::doubleValue).toArray();
    }

    private static void fail(
            final boolean failed, final String table, final JsonArray row, final Object found) {
        if (failed) {
            System.out.println(table + " " + row + ": found " + found);
            wrong = true;
        }
    }

    private static Object step(final JsonArray r) {
        return Threshold.step(
                r.get(0).getAsDouble(),
                r.get(1).getAsDouble(),
                r.get(2).getAsDouble(),
                r.get(3).getAsDouble());
    }

    private static Object adaptive(final JsonArray r) {
        final AdaptiveThreshold rule = new AdaptiveThreshold();
        final List<Double> states = new ArrayList<>();
        for (final JsonElement element : r.get(0).getAsJsonArray()) {
            final JsonArray e = element.getAsJsonArray();
            double worth = 0;
            switch (e.get(0).getAsInt()) {
                case 0:
                    rule.answered(
                            e.get(1).getAsLong(),
                            e.get(2).getAsInt(),
                            e.get(3).getAsLong(),
                            e.get(4).getAsLong(),
                            e.get(5).getAsLong());
                    break;
                case 1:
                    rule.settle(e.get(1).getAsLong(), e.get(2).getAsLong());
                    break;
                case 2:
                    worth =
                            rule.worth(
                                    e.get(1).getAsLong(),
                                    e.get(2).getAsInt(),
                                    e.get(3).getAsLong());
                    break;
                default:
                    rule.held();
            }
            states.addAll(List.of(rule.value(), rule.returning, worth));
        }
        return states.stream().mapToDouble(Double::doubleValue).toArray();
    }

    private static Object fit(final JsonArray r) {
        final LatencyFit rule = new LatencyFit();
        final List<Double> known = new ArrayList<>();
        for (final JsonElement element : r.get(0).getAsJsonArray()) {
            final JsonArray seen = element.getAsJsonArray();
            rule.observe(seen.get(0).getAsInt(), seen.get(1).getAsLong());
            known.addAll(List.of(rule.fixedNs(), rule.perRequestNs(), rule.errorNs()));
            known.add((double) rule.worthNs());
        }
        return known.stream().mapToDouble(Double::doubleValue).toArray();
    }

    private static long[] longs(final JsonElement list) {
        final JsonArray numbers = list.getAsJsonArray();
        final long[] values = new long[numbers.size()];
        for (int i = 0; i < values.length; i++) {
            values[i] = numbers.get(i).getAsLong();
        }
        return values;
    }

    private static int[] ints(final JsonElement list) {
        return Arrays.stream(longs(list)).mapToInt(Math::toIntExact).toArray();
    }

    private static JsonArray array(final int... numbers) {
        final JsonArray list = new JsonArray();
        Arrays.stream(numbers).forEach(list::add);
        return list;
    }

    private static Object splitByLatency(final JsonArray r) {
        return array(
                ReleaseRule.splitByLatency(
                        r.get(0).getAsInt(), ints(r.get(1)), longs(r.get(2)), longs(r.get(3))));
    }

    private static Object fitDeadlines(final JsonArray r) {
        final Deadlines.Cut cut =
                Deadlines.fit(
                        longs(r.get(0)),
                        r.get(1).getAsInt(),
                        r.get(2).getAsInt(),
                        r.get(3).getAsInt(),
                        r.get(4).getAsLong(),
                        r.get(5).getAsLong(),
                        r.get(6).getAsLong());
        return array(cut.skip(), cut.take());
    }

    private static Object predictedWait(final JsonArray r) {
        return Deadlines.predictedWaitNs(
                r.get(0).getAsLong(),
                r.get(1).getAsLong(),
                r.get(2).getAsLong(),
                r.get(3).getAsLong());
    }

    private static long at(final JsonArray row, final int column) {
        return row.get(column).getAsLong();
    }

    private static long slack(final JsonElement value) {
        return value.isJsonNull() ? ReleaseRule.NO_SLACK : value.getAsLong();
    }

    private static Object shouldRelease(final JsonArray r) {
        return ReleaseRule.shouldRelease(
                r.get(0).getAsInt(),
                r.get(1).getAsLong(),
                slack(r.get(2)),
                r.get(3).getAsDouble(),
                r.get(4).getAsLong(),
                r.get(5).getAsInt(),
                r.get(6).getAsLong(),
                r.get(7).getAsLong());
    }

    private static Object split(final JsonArray r) {
        return array(ReleaseRule.split(r.get(0).getAsInt(), ints(r.get(1))));
    }

    private static Object maySendAhead(final JsonArray r) {
        return ReleaseRule.maySendAhead(
                r.get(0).getAsInt(),
                r.get(1).getAsDouble(),
                r.get(2).getAsInt(),
                r.get(3).getAsInt(),
                r.get(4).getAsInt(),
                r.get(5).getAsInt(),
                r.get(6).getAsBoolean(),
                r.get(7).getAsBoolean(),
                r.get(8).getAsBoolean());
    }

    private static Object wakeAfter(final JsonArray r) {
        return ReleaseRule.wakeAfterUs(
                r.get(0).getAsLong(),
                slack(r.get(1)),
                r.get(2).getAsLong(),
                r.get(3).getAsLong(),
                r.get(4).getAsLong());
    }

    private static Long requestClass(final String text) {
        return (long) RequestTerms.of(text, null, null).requestClass().ordinal();
    }

    private static Long deadline(final String text) {
        return RequestTerms.of(null, text, null).deadlineNs();
    }
}
