package org.shunter.torchserve;

import static org.shunter.torchserve.ControlLayout.*;

/**
 * This server's own line of hold words: on which slices best-effort work must stand still, because
 * strict requests wait or run there. Every model has a {@link Part} in it.
 *
 * <p>Readers look at the mask first. So what they look at next is there before a mask is raised,
 * and goes only after it is lowered.
 */
final class Hold {
    /** A holder that did not beat for so long is not believed; {@code batching/holds.py}. */
    private static final long STALE_NS = 2_000_000_000L;
    /** What the controller's bounds are where it says nothing else. */
    private static final long MAX_HOLD_NS = 2_000_000_000L;
    private static final long LONGEST_PARK_NS = 1_000_000_000L;

    private static final int LINE = HEADER_SIZE;

    private final ControlPage page;
    /** Models that hold each slice. */
    private final int[] holders = new int[Long.SIZE];

    private final long[] models = new long[SLOT_WORDS];
    /** Models without a slot that hold. */
    private int nameless;
    private long mask;
    private boolean released;

    Hold(final ControlPage page) {
        this.page = page;
    }

    /** What one model holds. Its dispatcher's lock guards it. */
    final class Part {
        private long slices;
        private int slot = -1;
        /** Whether there is strict work, even if it has got nowhere for too long. */
        private boolean works;
        private long progressNs;
        /** For readers without the lock. */
        private volatile boolean holds;

        /** Whether it holds anything. */
        boolean holds() {
            return holds;
        }

        /**
         * From now on the model holds these slices and no others; none if its strict work has got
         * nowhere for too long: the line's own word of progress is that of all models.
         *
         * @param worksOn where it has strict work
         * @param ofSlot slot of the model, -1 for none
         */
        void show(final long worksOn, final int ofSlot, final long nowNs) {
            if (worksOn != 0 && !works) {
                progressNs = nowNs;
            }
            works = worksOn != 0;
            final long wanted = nowNs - progressNs > maxHoldNs() ? 0 : worksOn;
            if (wanted == slices && (wanted == 0 || ofSlot == slot)) {
                return;
            }
            change(this, wanted, ofSlot, nowNs);
            slices = wanted;
            slot = ofSlot;
            holds = wanted != 0;
        }

        /** A batch of strict work that holds began or ended. */
        void progress(final long nowNs) {
            progressNs = nowNs;
            if (slices != 0) {
                page.set(LINE + K_HOLD_PROGRESS_NS, nowNs);
            }
        }
    }

    /** A model that holds nothing yet. */
    Part part() {
        return new Part();
    }

    private synchronized void change(
            final Part part, final long wanted, final int slot, final long nowNs) {
        if (released) {
            return;
        }
        if (part.slices == 0 && wanted != 0) {
            page.set(LINE + K_HOLD_PROGRESS_NS, nowNs);
            if (mask == 0) {
                page.set(LINE + K_HOLD_SINCE_NS, nowNs);
            }
        }
        final boolean named = part.slices != 0 && slot == part.slot;
        if (wanted != 0 && !named) {
            setModel(slot, true);
        }
        count(part.slices, -1);
        count(wanted, 1);
        page.set(LINE + K_HOLD_MASK, mask);
        if (part.slices != 0 && (wanted == 0 || slot != part.slot)) {
            setModel(part.slot, false);
        }
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

    private void count(final long slices, final int by) {
        for (long left = slices; left != 0; left &= left - 1) {
            final int slice = Long.numberOfTrailingZeros(left);
            holders[slice] += by;
            mask = holders[slice] > 0 ? mask | 1L << slice : mask & ~(1L << slice);
        }
    }

    /** This server lives. */
    synchronized void heartbeat(final long nowNs) {
        if (!released) {
            page.set(LINE + K_HOLDER_HEARTBEAT_NS, nowNs);
        }
    }

    /** Nothing is held any more, whatever comes; the server ends. */
    synchronized void release() {
        released = true;
        page.set(LINE + K_HOLD_MASK, 0);
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
    long longestParkNs() {
        final long us = page.get(H_LONGEST_PARK_US);
        return us == 0 ? LONGEST_PARK_NS : us * 1000;
    }

    /** The slices that anybody holds, this server or another process. */
    long held(final long nowNs) {
        long held = 0;
        for (int i = 0; i < HOLDER_COUNT; i++) {
            final int line = HEADER_SIZE + i * HOLDER_SIZE;
            held |= lives(line, nowNs) ? page.get(line + K_HOLD_MASK) : 0;
        }
        return held;
    }

    /** Whether anybody holds some of these slices, or has begun to hold any since then. */
    boolean disturbs(final long slices, final long sinceNs, final long nowNs) {
        for (int i = 0; i < HOLDER_COUNT; i++) {
            final int line = HEADER_SIZE + i * HOLDER_SIZE;
            if (lives(line, nowNs)
                    && ((page.get(line + K_HOLD_MASK) & slices) != 0
                            || page.get(line + K_HOLD_SINCE_NS) - sinceNs > 0)) {
                return true;
            }
        }
        return false;
    }

    private boolean lives(final int line, final long nowNs) {
        final long age = nowNs - page.get(line + K_HOLDER_HEARTBEAT_NS);
        return page.get(line + K_HOLDER_PID) != 0 && Math.abs(age) <= STALE_NS;
    }
}
