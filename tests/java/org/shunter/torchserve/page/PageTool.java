package org.shunter.torchserve.page;

import static org.shunter.torchserve.page.ControlLayout.*;

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
import org.shunter.torchserve.forming.RequestClass;
import org.shunter.torchserve.host.FrontEnd;
import org.shunter.torchserve.pool.WantedConfiguration;

/** Reads and writes a control page with the classes of the jar, for the tests in Python. */
public final class PageTool {
    private PageTool() {}

    /** {@code dump FILE}, {@code create FILE}, {@code wanted FILE}. */
    public static void main(final String[] args) throws Exception {
        final Path file = Path.of(args[1]);
        switch (args[0]) {
            case "dump":
                dump(ByteBuffer.wrap(Files.readAllBytes(file)));
                break;
            case "create":
                create(file);
                break;
            case "wanted":
                wanted(ByteBuffer.wrap(Files.readAllBytes(file)));
                break;
            default:
                throw new IllegalArgumentException(args[0]);
        }
    }

    /** The groups that the controller wants of the model in slot 0: what, and where. */
    private static void wanted(final ByteBuffer bytes) {
        bytes.position(SLOTS_OFFSET).limit(SLOTS_OFFSET + SLOT_SIZE);
        new WantedConfiguration(new ModelSlot(bytes.slice(), 0))
                .next()
                .forEach(
                        group ->
                                System.out.println(
                                        group.text() + " " + group.cores() + " " + group.device()));
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
        dumpCounters(bytes);
        final ByteBuffer slice = bytes.duplicate();
        slice.position(SLOTS_OFFSET).limit(SLOTS_OFFSET + SLOT_SIZE);
        final byte[] slot = new byte[SLOT_SIZE];
        slice.get(slot);
        for (int i = 0; i < slotFields.size(); i++) {
            dumpField(new ModelSlot(ByteBuffer.wrap(slot), 0), slot, slotFields, i);
        }
    }

    private static void dumpCounters(final ByteBuffer bytes) {
        FrontEnd.counters(new ControlPage(bytes))
                .forEach((name, value) -> System.out.println("counter." + name + " " + value));
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
                offset >= S_GROUP_READY && offset < S_COMMAND_SEQUENCE
                        || offset >= S_COMMAND_CAP && offset < S_NETWORK_WORKERS;
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
        if (List.of("preference", "network_attainment_ppm", "attainment").contains(name)) {
            return RequestClass.COUNT;
        }
        if (name.equals("strict_batch_ns")) {
            return SIZE_BUCKETS;
        }
        if (name.equals("beside")) {
            return SLOT_WORDS;
        }
        if (List.of("default_version", "last_change", "wanted_pin").contains(name)) {
            return 1; // with what follows as long as a table
        }
        if (name.equals("group_slices")) {
            return SLICE_WORDS;
        }
        if (name.equals("wanted_cpus")) {
            return CPU_SLICES / Long.SIZE;
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
                    slot.setText(S_MODEL_NAME, MODEL_NAME_BYTES, "mod\u00e8le");
                    slot.setText(S_MODEL_VERSION, MODEL_VERSION_BYTES, "1.0");
                    slot.setText(S_DEFAULT_VERSION, DEFAULT_VERSION_BYTES, "2.0");
                });
        slot.set(S_UPDATED_NS, 123_456_789);
        final int last = S_STRICT_BATCH_NS + 8 * SIZE_BUCKETS;
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
}
