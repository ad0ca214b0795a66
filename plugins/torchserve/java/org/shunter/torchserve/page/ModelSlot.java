package org.shunter.torchserve.page;

import static org.shunter.torchserve.page.ControlLayout.*;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import org.shunter.torchserve.forming.RequestClass;

/**
 * One model version's part of the control page. The dispatcher of that model is the only writer of
 * identity and telemetry; the controller is the only writer of commands.
 */
public final class ModelSlot {
    private static final int READ_ATTEMPTS = 64;

    private volatile ByteBuffer bytes;
    private volatile int index;

    ModelSlot(final ByteBuffer bytes, final int index) {
        this.bytes = bytes;
        this.index = index;
    }

    /** Slot number, or -1 for a slot that no other process sees. */
    public int index() {
        return index;
    }

    public long get(final int offset) {
        return (long) ControlPage.WORD.getAcquire(bytes, offset);
    }

    public void set(final int offset, final long value) {
        ControlPage.WORD.setRelease(bytes, offset, value);
    }

    /** Add to a word that only this process writes. */
    public void add(final int offset, final long amount) {
        final long value = (long) ControlPage.WORD.get(bytes, offset);
        ControlPage.WORD.setRelease(bytes, offset, value + amount);
    }

    /** Offset of a per-class word. */
    public static int of(final int offset, final RequestClass requestClass) {
        return offset + 8 * requestClass.ordinal();
    }

    /** Offset of a per-group word. */
    public static int ofGroup(final int offset, final int group) {
        return offset + group * GROUP_STRIDE;
    }

    /** Bucket of a batch size: {@code ceil(log2(size))}, at most the last. */
    public static int sizeBucket(final int size) {
        return Math.min(32 - Integer.numberOfLeadingZeros(size - 1), SIZE_BUCKETS - 1);
    }

    /** Bucket of a time in nanoseconds. */
    public static int timeBucket(final long ns) {
        final long over = Math.max(ns - 1, 0) >> TIME_BUCKET_SHIFT;
        return Math.min(64 - Long.numberOfLeadingZeros(over), TIME_BUCKETS - 1);
    }

    /** Count a time in a histogram by class, and in its sum. */
    public void addTime(
            final int histogram, final int sum, final RequestClass requestClass, final long ns) {
        final int bucket = requestClass.ordinal() * TIME_BUCKETS + timeBucket(ns);
        add(histogram + 8 * bucket, 1);
        add(of(sum, requestClass), Math.max(0, ns));
    }

    /** Run a change of identity words under the slot's seqlock. */
    public synchronized void changeIdentity(final Runnable change) {
        final long sequence = get(S_SLOT_SEQUENCE) | 1;
        set(S_SLOT_SEQUENCE, sequence);
        change.run();
        set(S_SLOT_SEQUENCE, sequence + 1);
    }

    /** Write a zero-padded UTF-8 string, cut to fit; call inside {@link #changeIdentity}. */
    public void setText(final int offset, final int width, final String text) {
        final byte[] encoded = text.getBytes(StandardCharsets.UTF_8);
        int length = Math.min(encoded.length, width);
        while (length < encoded.length && length > 0 && (encoded[length] & 0xC0) == 0x80) {
            length--; // not in the middle of a character
        }
        for (int i = 0; i < width; i++) {
            bytes.put(offset + i, i < length ? encoded[i] : 0);
        }
    }

    /** Value of the commands' seqlock; it changes when the controller wrote. */
    long commandSequence() {
        return get(S_COMMAND_SEQUENCE);
    }

    /**
     * A consistent copy of the command words.
     *
     * @return false when the controller never wrote or is writing; the caller keeps what it had
     */
    public boolean readCommands(final long[] words, final int[] offsets) {
        for (int attempt = 0; attempt < READ_ATTEMPTS; attempt++) {
            final long before = commandSequence();
            if (before == 0 || (before & 1) == 1) {
                return false;
            }
            for (int i = 0; i < offsets.length; i++) {
                words[i] = get(offsets[i]);
            }
            if (commandSequence() == before) {
                return true;
            }
        }
        return false;
    }

    /**
     * Zero every word; the state first, so that no reader takes the rest for a live model. From then
     * on this object writes to private memory: no late change of the identity brings it back.
     */
    synchronized void leave() {
        changeIdentity(this::clear);
        bytes = ByteBuffer.allocateDirect(SLOT_SIZE);
        index = -1;
    }

    /**
     * Zero every word but the seqlock's. Also before a model has it: another process may have
     * written for the one before after that had left.
     */
    void clear() {
        set(S_SLOT_STATE, 0);
        for (int at = S_GENERATION; at < SLOT_SIZE; at += 8) {
            set(at, 0);
        }
    }
}
