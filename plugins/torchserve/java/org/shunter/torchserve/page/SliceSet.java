package org.shunter.torchserve.page;

import static org.shunter.torchserve.page.ControlLayout.*;

import java.util.Arrays;

/**
 * Slices of this machine: CPUs and parts of devices. {@code batching/page/slices.py} says which bit is
 * which; golden tables keep both equal. Immutable: who asks for what one of two sets is already gets
 * that one, so that where nothing changes nothing is allocated.
 */
public final class SliceSet {
    public static final SliceSet NONE = new SliceSet(new long[SLICE_WORDS]);
    public static final SliceSet ALL_CPUS = range(0, CPU_SLICES);
    static final SliceSet ALL_DEVICES =
            range(CPU_SLICES, CPU_SLICES + DEVICE_COUNT * DEVICE_SLICES);

    private final long[] words;

    private SliceSet(final long[] words) {
        this.words = words;
    }

    /** The set that these words say; bits beyond the last do not exist. */
    public static SliceSet of(final long... words) {
        return new SliceSet(Arrays.copyOf(words, SLICE_WORDS));
    }

    private static SliceSet range(final int from, final int to) {
        final long[] words = new long[SLICE_WORDS];
        for (int bit = from; bit < to; bit++) {
            words[bit / Long.SIZE] |= 1L << bit % Long.SIZE;
        }
        return new SliceSet(words);
    }

    /** CPUs from first to last; all CPUs if one of them has no bit. */
    public static SliceSet ofCpus(final int first, final int last) {
        return last < CPU_SLICES ? range(first, last + 1) : ALL_CPUS;
    }

    /** So many slices of a device from {@code start} on; what has no bit is all of its kind. */
    public static SliceSet ofDevice(final int device, final int start, final int size) {
        if (device < 0 || device >= DEVICE_COUNT) {
            return ALL_DEVICES;
        }
        final int from = CPU_SLICES + device * DEVICE_SLICES;
        return start < 0 || size < 1 || start + size > DEVICE_SLICES
                ? range(from, from + DEVICE_SLICES)
                : range(from + start, from + start + size);
    }

    public long word(final int index) {
        return words[index];
    }

    public boolean isEmpty() {
        for (final long word : words) {
            if (word != 0) {
                return false;
            }
        }
        return true;
    }

    /** Whether there is a part of a device among them. */
    public boolean hasDevice() {
        return overlaps(ALL_DEVICES);
    }

    /** How many CPUs are among them. */
    public int cpus() {
        int count = 0;
        for (int i = 0; i < CPU_SLICES / Long.SIZE; i++) {
            count += Long.bitCount(words[i]);
        }
        return count;
    }

    /** Its CPUs as a Linux cpu list; empty if there are none. */
    public String cpuList() {
        final StringBuilder list = new StringBuilder();
        for (int cpu = 0; cpu < CPU_SLICES; cpu++) {
            if (!has(cpu)) {
                continue;
            }
            list.append(list.length() == 0 ? "" : ",").append(cpu);
            final int first = cpu;
            while (cpu + 1 < CPU_SLICES && has(cpu + 1)) {
                cpu++;
            }
            list.append(cpu == first ? "" : "-" + cpu);
        }
        return list.toString();
    }

    private boolean has(final int bit) {
        return (words[bit / Long.SIZE] >> bit % Long.SIZE & 1) == 1;
    }

    public boolean overlaps(final SliceSet other) {
        for (int i = 0; i < words.length; i++) {
            if ((words[i] & other.words[i]) != 0) {
                return true;
            }
        }
        return false;
    }

    public boolean contains(final SliceSet other) {
        for (int i = 0; i < words.length; i++) {
            if ((other.words[i] & ~words[i]) != 0) {
                return false;
            }
        }
        return true;
    }

    public SliceSet or(final SliceSet other) {
        if (contains(other)) {
            return this;
        }
        if (other.contains(this)) {
            return other;
        }
        final long[] both = words.clone();
        for (int i = 0; i < both.length; i++) {
            both[i] |= other.words[i];
        }
        return new SliceSet(both);
    }

    public SliceSet and(final SliceSet other) {
        if (other.contains(this)) {
            return this;
        }
        return andNot(andNot(other));
    }

    public SliceSet andNot(final SliceSet other) {
        if (!overlaps(other)) {
            return this;
        }
        if (other.contains(this)) {
            return NONE;
        }
        final long[] rest = words.clone();
        for (int i = 0; i < rest.length; i++) {
            rest[i] &= ~other.words[i];
        }
        return new SliceSet(rest);
    }

    @Override
    public boolean equals(final Object other) {
        return this == other
                || other instanceof SliceSet && Arrays.equals(words, ((SliceSet) other).words);
    }

    @Override
    public int hashCode() {
        return Arrays.hashCode(words);
    }

    /** A whole number in hexadecimal, as workers are told. */
    @Override
    public String toString() {
        final StringBuilder text = new StringBuilder();
        for (int i = words.length - 1; i >= 0; i--) {
            if (text.length() > 0) {
                text.append(String.format("%016x", words[i]));
            } else if (words[i] != 0 || i == 0) {
                text.append(Long.toHexString(words[i]));
            }
        }
        return "0x" + text;
    }
}
