package org.shunter.torchserve;

import static org.shunter.torchserve.ControlLayout.*;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.IOException;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.function.Function;
import org.pytorch.serve.http.BadRequestException;

/**
 * The Java side of the tests that hold Python and Java against each other: reads and writes a
 * control page with the classes of the jar, and recomputes the golden tables.
 */
public final class PageTool {
    private PageTool() {}

    /** {@code dump FILE}, {@code create FILE}, {@code golden-(threshold|latency|...) FILE}. */
    public static void main(final String[] args) throws Exception {
        final Path file = Path.of(args[1]);
        switch (args[0]) {
            case "dump":
                dump(ByteBuffer.wrap(Files.readAllBytes(file)));
                break;
            case "create":
                create(file);
                break;
            case "golden-threshold":
                check(file, "step", PageTool::step);
                check(file, "adaptive", PageTool::adaptive);
                check(file, "quantum", PageTool::quantum);
                check(
                        file,
                        "hold_ns",
                        r -> AdaptiveThreshold.holdNs(r.get(0).getAsDouble(), r.get(1).getAsLong()));
                break;
            case "golden-latency":
                check(file, "fit", PageTool::fit);
                check(file, "time_bucket", r -> ModelSlot.timeBucket(r.get(0).getAsLong()));
                break;
            case "golden-release":
                check(file, "should_release", PageTool::shouldRelease);
                check(file, "split", PageTool::split);
                check(file, "split_by_latency", PageTool::splitByLatency);
                check(file, "fit_deadlines", PageTool::fitDeadlines);
                check(file, "predicted_wait_ns", PageTool::predictedWait);
                check(
                        file,
                        "staggered_size",
                        r ->
                                ReleaseRule.staggeredSize(
                                        r.get(0).getAsInt(),
                                        r.get(1).getAsLong(),
                                        r.get(2).getAsLong(),
                                        longs(r.get(3))));
                check(file, "may_send_ahead", PageTool::maySendAhead);
                check(file, "wake_after_us", PageTool::wakeAfter);
                break;
            case "golden-classes":
                checkTerms(file, "class", PageTool::requestClass);
                checkTerms(file, "deadline", PageTool::deadline);
                break;
            default:
                throw new IllegalArgumentException(args[0]);
        }
    }

    private static void dump(final ByteBuffer bytes) throws IllegalAccessException {
        final List<Field> slotFields = new ArrayList<>();
        for (final Field field : ControlLayout.class.getDeclaredFields()) {
            if (Modifier.isStatic(field.getModifiers()) && field.getName().startsWith("H_")) {
                final long value = (long) ControlPage.WORD.getAcquire(bytes, field.getInt(null));
                System.out.println(name(field) + " " + value);
            } else if (field.getName().startsWith("S_")) {
                slotFields.add(field);
            }
        }
        final ByteBuffer slice = bytes.duplicate();
        slice.position(SLOTS_OFFSET).limit(SLOTS_OFFSET + SLOT_SIZE);
        final byte[] slot = new byte[SLOT_SIZE];
        slice.get(slot);
        for (int i = 0; i < slotFields.size(); i++) {
            dumpField(new ModelSlot(ByteBuffer.wrap(slot), 0), slot, slotFields, i);
        }
    }

    private static String name(final Field field) {
        return field.getName().substring(2).toLowerCase(Locale.ROOT);
    }

    private static void dumpField(
            final ModelSlot view, final byte[] slot, final List<Field> fields, final int i)
            throws IllegalAccessException {
        final String name = name(fields.get(i));
        final int offset = fields.get(i).getInt(null);
        if (name.equals("model_name") || name.equals("model_version")) {
            int length = 0;
            while (slot[offset + length] != 0) {
                length++;
            }
            System.out.println(name + " " + new String(slot, offset, length, StandardCharsets.UTF_8));
            return;
        }
        final boolean grouped =
                offset >= S_GROUP_READY && offset < S_COMMAND_SEQUENCE || offset >= S_COMMAND_CAP;
        final int count = words(name, offset, fields, i);
        for (int group = 0; group < (grouped ? GROUP_COUNT : 1); group++) {
            for (int word = 0; word < count; word++) {
                System.out.println(
                        name
                                + (grouped ? "[" + group + "]" : "")
                                + (count > 1 ? "[" + word + "]" : "")
                                + " "
                                + view.get(ModelSlot.ofGroup(offset, group) + 8 * word));
            }
        }
    }

    private static int words(
            final String name, final int offset, final List<Field> fields, final int i)
            throws IllegalAccessException {
        if (name.equals("preference")) {
            return RequestClass.COUNT;
        }
        if (name.equals("latency_times")) {
            return 2 * TIME_BUCKETS;
        }
        final int next = i + 1 < fields.size() ? fields.get(i + 1).getInt(null) : offset + 8;
        final int words = (next - offset) / 8;
        return words == 2 || words == SIZE_BUCKETS || words == 2 * TIME_BUCKETS ? words : 1;
    }

    private static void create(final Path file) throws IOException {
        final Path folder = Files.createTempDirectory(file.toAbsolutePath().getParent(), "page");
        final ControlPage page = ControlPage.create(folder, ProcessHandle.current().pid());
        final ModelSlot slot = page.claim();
        slot.changeIdentity(
                () -> {
                    slot.set(S_SLOT_STATE, 1);
                    slot.set(S_GENERATION, 7);
                    slot.set(S_REGISTERED_BATCH_SIZE, 32);
                    slot.set(S_REGISTERED_MAX_WAIT_US, 5000);
                    slot.set(S_QUEUE_CAPACITY, 100);
                    slot.set(S_GROUP_COUNT, 2);
                    slot.set(S_SLO_US, 40000);
                    slot.setText(S_MODEL_NAME, 256, "mod\u00e8le");
                    slot.setText(S_MODEL_VERSION, 128, "1.0");
                });
        slot.set(S_UPDATED_NS, 123_456_789);
        final int last = S_LATENCY_TIMES + 8 * 2 * TIME_BUCKETS;
        for (int k = 1; S_UPDATED_NS + 8 * k < last; k++) {
            slot.add(S_UPDATED_NS + 8 * k, 1000 + k);
        }
        for (int group = 0; group < 2; group++) {
            for (int k = 0; k < 10; k++) {
                slot.set(ModelSlot.ofGroup(S_GROUP_READY, group) + 8 * k, 100 * (group + 1) + k);
            }
        }
        Files.move(folder.resolve(ControlPage.FILE), file);
        Files.delete(folder);
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
            System.exit(1);
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
            states.addAll(List.of(rule.value(), rule.returning(), worth));
        }
        return states.stream().mapToDouble(Double::doubleValue).toArray();
    }

    private static Object quantum(final JsonArray r) {
        final QuantumThreshold rule = new QuantumThreshold();
        final long quantumNs = r.get(0).getAsLong();
        final JsonArray events = r.get(1).getAsJsonArray();
        final double[] values = new double[events.size()];
        for (int i = 0; i < values.length; i++) {
            final JsonArray e = events.get(i).getAsJsonArray();
            rule.settle(e.get(0).getAsLong(), e.get(1).getAsLong(), quantumNs, 0.5, 128.0);
            values[i] = rule.value();
        }
        return values;
    }

    private static Object fit(final JsonArray r) {
        final LatencyFit rule = new LatencyFit();
        final List<Double> known = new ArrayList<>();
        for (final JsonElement element : r.get(0).getAsJsonArray()) {
            final JsonArray seen = element.getAsJsonArray();
            rule.observe(seen.get(0).getAsInt(), seen.get(1).getAsLong());
            known.addAll(List.of(rule.fixedNs(), rule.perRequestNs(), rule.errorNs()));
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
        return (long) RequestTerms.of(text, null).requestClass().ordinal();
    }

    private static Long deadline(final String text) {
        return RequestTerms.of(null, text).deadlineNs();
    }
}
