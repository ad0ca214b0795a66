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

    /** {@code dump FILE}, {@code create FILE}, {@code golden-(threshold|release|classes) FILE}. */
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
                break;
            case "golden-release":
                check(file, "should_release", PageTool::shouldRelease);
                check(file, "split", PageTool::split);
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
        if (name.equals("service_ns_by_size")) {
            return SIZE_BUCKETS;
        }
        final int next = i + 1 < fields.size() ? fields.get(i + 1).getInt(null) : offset + 8;
        final int words = (next - offset) / 8;
        return words == 2 || words == SIZE_BUCKETS ? words : 1;
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
        final int last = S_SERVICE_NS_BY_SIZE + 8 * SIZE_BUCKETS;
        for (int k = 1; S_UPDATED_NS + 8 * k < last; k++) {
            slot.add(S_UPDATED_NS + 8 * k, 1000 + k);
        }
        for (int group = 0; group < 2; group++) {
            for (int k = 0; k < 6; k++) {
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
                    found instanceof Double
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
        final JsonArray caps = r.get(1).getAsJsonArray();
        final int[] numbers = new int[caps.size()];
        for (int i = 0; i < numbers.length; i++) {
            numbers[i] = caps.get(i).getAsInt();
        }
        final JsonArray sizes = new JsonArray();
        for (final int size : ReleaseRule.split(r.get(0).getAsInt(), numbers)) {
            sizes.add(size);
        }
        return sizes;
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
