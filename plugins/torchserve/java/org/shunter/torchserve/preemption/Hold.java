package org.shunter.torchserve.preemption;

import static org.shunter.torchserve.page.ControlLayout.*;

import java.util.ArrayList;
import java.util.List;
import org.shunter.torchserve.page.ControlPage;
import org.shunter.torchserve.page.SliceSet;

/**
 * This server's own line of hold words: on which slices best-effort work must stand still, because
 * strict requests wait or run there. Every model has a {@link Part} in it.
 *
 * <p>Readers look at the slices first. So what they look at next is there before slices are raised,
 * and goes only after they are lowered. {@code batching/page/hold_words.py} says how the slices' own words
 * are stored.
 */
public final class Hold {
    /** A holder that did not beat for so long is not believed; {@code batching/page/holds.py}. */
    private static final long STALE_NS = 2_000_000_000L;
    /** What the controller's bounds are where it says nothing else. */
    private static final long MAX_HOLD_NS = 2_000_000_000L;
    private static final long LONGEST_PARK_NS = 1_000_000_000L;

    private static final int LINE = HEADER_SIZE;

    private static final int READ_ATTEMPTS = 8;

    private final ControlPage page;
    private final List<Part> holding = new ArrayList<>();

    private final long[] models = new long[SLOT_WORDS];
    /** Models without a slot that hold. */
    private int nameless;
    /** What the line says. */
    private SliceSet said = SliceSet.NONE;

    private long number;
    private boolean released;

    public Hold(final ControlPage page) {
        this.page = page;
    }

    /** What one model holds. Its dispatcher's lock guards it. */
    public final class Part {
        /** Written under the lock of the line, too. */
        private SliceSet slices = SliceSet.NONE;

        private int slot = -1;
        /** Whether there is strict work, even if it has got nowhere for too long. */
        private boolean works;
        private long progressNs;
        /** For readers without the lock. */
        private volatile boolean holds;

        /** Whether it holds anything. */
        public boolean holds() {
            return holds;
        }

        /**
         * From now on the model holds these slices and no others; none if its strict work has got
         * nowhere for too long: the line's own word of progress is that of all models.
         *
         * @param worksOn where it has strict work
         * @param ofSlot slot of the model, -1 for none
         */
        public void show(final SliceSet worksOn, final int ofSlot, final long nowNs) {
            final boolean worked = works;
            works = !worksOn.isEmpty();
            if (works && !worked) {
                progressNs = nowNs;
            }
            final SliceSet wanted = nowNs - progressNs > maxHoldNs() ? SliceSet.NONE : worksOn;
            if (wanted.equals(slices) && (wanted.isEmpty() || ofSlot == slot)) {
                return;
            }
            change(this, wanted, ofSlot, nowNs);
            holds = !wanted.isEmpty();
        }

        /** A batch of strict work that holds began or ended. */
        public void progress(final long nowNs) {
            progressNs = nowNs;
            if (holds) {
                page.set(LINE + K_HOLD_PROGRESS_NS, nowNs);
            }
        }
    }

    /** A model that holds nothing yet. */
    public Part part() {
        return new Part();
    }

    private synchronized void change(
            final Part part, final SliceSet wanted, final int slot, final long nowNs) {
        final boolean held = !part.slices.isEmpty();
        final boolean holds = !wanted.isEmpty();
        final int before = part.slot;
        part.slices = wanted;
        part.slot = slot;
        if (released) {
            return;
        }
        if (!held && holds) {
            holding.add(part);
            page.set(LINE + K_HOLD_PROGRESS_NS, nowNs);
        } else if (held && !holds) {
            holding.remove(part);
        }
        if (holds && !(held && slot == before)) {
            setModel(slot, true);
        }
        SliceSet all = SliceSet.NONE;
        for (int i = 0; i < holding.size(); i++) {
            all = all.or(holding.get(i).slices);
        }
        say(all, nowNs);
        if (held && !(holds && slot == before)) {
            setModel(before, false);
        }
    }

    /** What comes, then the number, then what goes. */
    private void say(final SliceSet slices, final long nowNs) {
        if (slices.equals(said)) {
            return;
        }
        if (!said.contains(slices)) {
            page.set(LINE + K_HOLD_SINCE_NS, nowNs);
        }
        number++;
        if (slices.isEmpty()) {
            page.set(LINE + K_HOLD_NUMBER, 0);
        } else {
            store(said.or(slices));
            page.set(LINE + K_HOLD_NUMBER, number);
        }
        store(slices);
    }

    private void store(final SliceSet slices) {
        for (int word = 0; word < SLICE_WORDS; word++) {
            if (slices.word(word) != said.word(word)) {
                page.set(LINE + K_HOLD_SLICES + 8 * word, slices.word(word));
            }
        }
        said = slices;
    }

    /** While one that cannot be named holds, none is: beside nobody known, nobody may run. */
    private void setModel(final int slot, final boolean holds) {
        if (slot < 0) {
            nameless += holds ? 1 : -1;
        } else {
            final int word = slot / Long.SIZE;
            final long bit = 1L << slot % Long.SIZE;
            models[word] = holds ? models[word] | bit : models[word] & ~bit;
        }
        for (int word = 0; word < SLOT_WORDS; word++) {
            page.set(LINE + K_HOLD_MODELS + 8 * word, nameless > 0 ? 0 : models[word]);
        }
    }

    /** This server lives. */
    public synchronized void heartbeat(final long nowNs) {
        if (!released) {
            page.set(LINE + K_HOLDER_HEARTBEAT_NS, nowNs);
        }
    }

    /** Nothing is held any more, whatever comes; the server ends. */
    public synchronized void release() {
        released = true;
        say(SliceSet.NONE, 0);
        for (int word = 0; word < SLOT_WORDS; word++) {
            page.set(LINE + K_HOLD_MODELS + 8 * word, 0);
        }
        page.set(LINE + K_HOLDER_PID, 0);
    }

    /** How long a model holds without progress. */
    private long maxHoldNs() {
        final long us = page.get(H_MAX_HOLD_US);
        return us == 0 ? MAX_HOLD_NS : us * 1000;
    }

    /** How long a batch stands still at most. */
    public long longestParkNs() {
        final long us = page.get(H_LONGEST_PARK_US);
        return us == 0 ? LONGEST_PARK_NS : us * 1000;
    }

    /** The slices that anybody holds, this server or another process. */
    public SliceSet held(final long nowNs) {
        SliceSet held = SliceSet.NONE;
        for (int i = 0; i < HOLDER_COUNT; i++) {
            final int line = HEADER_SIZE + i * HOLDER_SIZE;
            if (page.get(line + K_HOLD_NUMBER) != 0 && lives(line, nowNs)) {
                held = held.or(read(line));
            }
        }
        return held;
    }

    /** Each slice as it was at some moment; while they change, all that was seen of them. */
    private SliceSet read(final int line) {
        final long[] words = new long[SLICE_WORDS];
        for (int attempt = 0; attempt < READ_ATTEMPTS; attempt++) {
            final long before = page.get(line + K_HOLD_NUMBER);
            for (int word = 0; before != 0 && word < SLICE_WORDS; word++) {
                words[word] |= page.get(line + K_HOLD_SLICES + 8 * word);
            }
            if (page.get(line + K_HOLD_NUMBER) == before) {
                break;
            }
        }
        return SliceSet.of(words);
    }

    /** Whether anybody holds some of these slices, or has begun to hold any since then. */
    public boolean disturbs(final SliceSet slices, final long sinceNs, final long nowNs) {
        for (int i = 0; i < HOLDER_COUNT; i++) {
            final int line = HEADER_SIZE + i * HOLDER_SIZE;
            if (lives(line, nowNs)
                    && (page.get(line + K_HOLD_SINCE_NS) - sinceNs > 0
                            || page.get(line + K_HOLD_NUMBER) != 0
                                    && read(line).overlaps(slices))) {
                return true;
            }
        }
        return false;
    }

    /**
     * Another number after every change of what anybody holds while something is held: slices may be
     * raised and lowered beside others, without a new beginning.
     */
    public long changes() {
        long mixed = 0;
        for (int i = 0; i < HOLDER_COUNT; i++) {
            mixed = 31 * mixed + page.get(HEADER_SIZE + i * HOLDER_SIZE + K_HOLD_NUMBER);
        }
        return mixed;
    }

    private boolean lives(final int line, final long nowNs) {
        final long age = nowNs - page.get(line + K_HOLDER_HEARTBEAT_NS);
        return page.get(line + K_HOLDER_PID) != 0 && Math.abs(age) <= STALE_NS;
    }
}
