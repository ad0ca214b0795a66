package org.shunter.torchserve.page;

import static org.shunter.torchserve.page.ControlLayout.*;

import org.shunter.torchserve.forming.RequestClass;

/**
 * The numbers that the dispatcher of one model obeys: built in until the controller writes, then
 * the page's, each clamped here because they come from another process.
 */
public final class Commands {
    private static final int FIXED = 11;
    private static final int PER_GROUP = 5;
    private static final long HOUR_US = 3_600_000_000L;
    private static final int[] OFFSETS = offsets();

    private final ModelSlot slot;
    private final long[] words = new long[OFFSETS.length];
    private final long[] fresh = new long[OFFSETS.length];
    private long seenSequence;

    public double alpha = 0.5;
    public double thresholdCap = 1e9;
    public double thresholdFixed;
    public long maxWaitUs = HOUR_US;
    public boolean mixClasses;
    public long ageingUs = 1_000_000;
    public int aheadBatches = 1;
    public long latencyFixedNs;
    public long latencyPerRequestNs;
    public boolean admission;
    public long marginUs = 2000;

    public Commands(final ModelSlot slot) {
        this.slot = slot;
    }

    private static int[] offsets() {
        final int[] offsets = new int[FIXED + PER_GROUP * GROUP_COUNT];
        final int[] fixed = {
            S_ALPHA_MILLIONTHS,
            S_THRESHOLD_CAP_MILLI,
            S_THRESHOLD_FIXED_MILLI,
            S_MAX_WAIT_US,
            S_MIX_CLASSES,
            S_AGEING_US,
            S_AHEAD_BATCHES,
            S_LATENCY_FIXED_NS,
            S_LATENCY_PER_REQUEST_NS,
            S_ADMISSION,
            S_MARGIN_US
        };
        System.arraycopy(fixed, 0, offsets, 0, FIXED);
        for (int group = 0; group < GROUP_COUNT; group++) {
            final int at = FIXED + PER_GROUP * group;
            final int base = group * GROUP_STRIDE;
            offsets[at] = S_COMMAND_CAP + base;
            offsets[at + 1] = S_WEIGHT_MILLI + base;
            offsets[at + 2] = S_WEIGHT_MILLI + 8 + base;
            offsets[at + 3] = S_PREFERENCE + base;
            offsets[at + 4] = S_PREFERENCE + 8 + base;
        }
        return offsets;
    }

    /** Take over what the controller wrote since the last call; true when something changed. */
    public boolean refresh() {
        final long sequence = slot.commandSequence();
        if (sequence == seenSequence || !slot.readCommands(fresh, OFFSETS)) {
            return false;
        }
        System.arraycopy(fresh, 0, words, 0, words.length);
        seenSequence = sequence;
        alpha = clamp(words[0], 0, 999_999) / 1e6;
        thresholdCap = Math.max(1.0, clamp(words[1], 1000, 1_000_000_000_000L) / 1e3);
        thresholdFixed = clamp(words[2], 0, 1_000_000_000_000L) / 1e3;
        maxWaitUs = clamp(words[3], 0, HOUR_US);
        mixClasses = words[4] == 1;
        ageingUs = clamp(words[5], 0, HOUR_US);
        aheadBatches = (int) clamp(words[6], 0, 1);
        latencyFixedNs = clamp(words[7], 0, HOUR_US * 1000);
        latencyPerRequestNs = clamp(words[8], 0, HOUR_US * 1000);
        admission = words[9] == 1;
        marginUs = clamp(words[10], 0, HOUR_US);
        return true;
    }

    /** Whether the controller wrote at all; before that, groups keep their own numbers. */
    public boolean commanded() {
        return seenSequence != 0;
    }

    /** Batch cap for a group, 0 when the controller leaves it alone. */
    public int cap(final int group) {
        return commanded() ? (int) clamp(words[FIXED + PER_GROUP * group], 0, 1 << 20) : 0;
    }

    /** Share of a class for a group in 1/1000; 0 means never. */
    public long weight(final int group, final RequestClass requestClass) {
        return commanded()
                ? clamp(words[FIXED + PER_GROUP * group + 1 + requestClass.ordinal()], 0, 1_000_000)
                : 1000;
    }

    /** Groups with a lower number are filled first. */
    public long preference(final int group, final RequestClass requestClass) {
        return commanded()
                ? clamp(words[FIXED + PER_GROUP * group + 3 + requestClass.ordinal()], 0, 1000)
                : 0;
    }

    private static long clamp(final long value, final long low, final long high) {
        return Math.max(low, Math.min(high, value));
    }
}
