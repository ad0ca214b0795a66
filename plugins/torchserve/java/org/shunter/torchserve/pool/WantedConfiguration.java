package org.shunter.torchserve.pool;

import static org.shunter.torchserve.page.ControlLayout.*;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.Executor;
import org.pytorch.serve.http.BadRequestException;
import org.shunter.torchserve.events.Level;
import org.shunter.torchserve.page.ModelSlot;
import org.shunter.torchserve.page.SliceSet;
import org.shunter.torchserve.settings.GroupConfig;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** The configuration that the controller wants for one model, taken up by the housekeeping. */
public final class WantedConfiguration {
    private static final Logger LOGGER = LoggerFactory.getLogger(WantedConfiguration.class);
    private static final int FIXED = 3;
    private static final int CPU_WORDS = CPU_SLICES / Long.SIZE;
    private static final int DEVICE_WORDS = DEVICE_BYTES / Long.BYTES;
    private static final int CPUS = 3;
    private static final int DEVICE = CPUS + CPU_WORDS;
    private static final int PER_GROUP = DEVICE + DEVICE_WORDS;
    private static final int MOST = 9999;
    private static final int[] OFFSETS = offsets();

    private final ModelSlot slot;
    private final long[] words = new long[OFFSETS.length];
    private long seen;

    public WantedConfiguration(final ModelSlot slot) {
        this.slot = slot;
    }

    private static int[] offsets() {
        final int[] offsets = new int[FIXED + PER_GROUP * GROUP_COUNT];
        offsets[0] = S_WANTED_REQUEST;
        offsets[1] = S_WANTED_GROUPS;
        offsets[2] = S_WANTED_PIN;
        for (int group = 0; group < GROUP_COUNT; group++) {
            final int at = FIXED + PER_GROUP * group;
            offsets[at] = ModelSlot.ofGroup(S_WANTED_INSTANCES, group);
            offsets[at + 1] = ModelSlot.ofGroup(S_WANTED_THREADS, group);
            offsets[at + 2] = ModelSlot.ofGroup(S_WANTED_BATCH, group);
            for (int i = 0; i < CPU_WORDS; i++) {
                offsets[at + CPUS + i] = ModelSlot.ofGroup(S_WANTED_CPUS, group) + 8 * i;
            }
            for (int i = 0; i < DEVICE_WORDS; i++) {
                offsets[at + DEVICE + i] = ModelSlot.ofGroup(S_WANTED_DEVICE, group) + 8 * i;
            }
        }
        return offsets;
    }

    /** Start the change that the controller asks for, on {@code executor}, if that is a new one. */
    void obey(final WorkerPool pool, final Executor executor) {
        final List<GroupConfig> groups = next();
        if (groups != null) {
            slot.set(S_CHANGE_STATE, CHANGE_UNDER_WAY);
            slot.set(S_CHANGE_REQUEST, seen);
            final long request = seen;
            try {
                executor.execute(() -> change(pool, groups, request));
            } catch (RuntimeException | Error e) { // no thread to be had
                finish(request, CHANGE_UNDONE);
                throw e;
            }
        }
    }

    /** What the controller asks for, if that is new; null otherwise. */
    public List<GroupConfig> next() {
        if (slot.get(S_WANTED_REQUEST) == seen
                || !slot.readCommands(words, OFFSETS)
                || words[0] == 0
                || words[0] == seen) {
            return null;
        }
        seen = words[0];
        return groups(words);
    }

    private void change(final WorkerPool pool, final List<GroupConfig> groups, final long request) {
        try {
            if (groups.isEmpty()) {
                throw new BadRequestException("a configuration has at least one worker group");
            }
            if (!pool.auto()) {
                throw new BadRequestException("auto is false");
            }
            pool.configureAsWanted(groups)
                    .whenComplete(
                            (done, error) ->
                                    finish(request, error == null ? CHANGE_SERVES : CHANGE_UNDONE));
        } catch (RuntimeException | Error e) { // else the change would be under way for ever
            final String reason = e.getMessage() == null ? e.toString() : e.getMessage();
            pool.tell(Level.WARNING, "refused: " + reason);
            LOGGER.warn("{}: the change was {}", pool, pool.lastChange());
            finish(request, CHANGE_UNDONE);
        }
    }

    private void finish(final long request, final long state) {
        if (slot.get(S_CHANGE_REQUEST) == request) {
            slot.set(S_CHANGE_STATE, state);
        }
    }

    /** The words as groups; they come from another process, so each is clamped. */
    private static List<GroupConfig> groups(final long[] words) {
        final List<GroupConfig> groups = new ArrayList<>();
        for (int i = 0; i < Math.min(words[1], GROUP_COUNT); i++) {
            final int at = FIXED + PER_GROUP * i;
            groups.add(
                    GroupConfig.of(
                                    clamp(words[at], 1, MOST),
                                    clamp(words[at + 1], 0, MOST),
                                    clamp(words[at + 2], 1, 1 << 20))
                            .withCores(cores(words, at + CPUS))
                            .withDevice(device(words, at + DEVICE)));
        }
        return groups;
    }

    private static String cores(final long[] words, final int at) {
        final String list = SliceSet.of(Arrays.copyOfRange(words, at, at + CPU_WORDS)).cpuList();
        return !list.isEmpty() ? list : words[2] == 1 ? GroupConfig.AUTO : null;
    }

    private static String device(final long[] words, final int at) {
        final ByteBuffer bytes = ByteBuffer.allocate(DEVICE_BYTES).order(ByteOrder.LITTLE_ENDIAN);
        bytes.asLongBuffer().put(words, at, DEVICE_WORDS);
        int length = 0;
        while (length < DEVICE_BYTES && bytes.get(length) != 0) {
            length++;
        }
        return length == 0 ? null : new String(bytes.array(), 0, length, StandardCharsets.UTF_8);
    }

    private static int clamp(final long value, final int low, final int high) {
        return (int) Math.max(low, Math.min(high, value));
    }
}
