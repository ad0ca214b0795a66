package org.shunter.torchserve.preemption;

import static org.shunter.torchserve.page.ControlLayout.*;

import java.util.Collection;
import java.util.IdentityHashMap;
import java.util.Map;
import org.shunter.torchserve.page.ControlPage;
import org.shunter.torchserve.page.ModelSlot;

/**
 * What the workers that stand still for strict work count on the control page, summed up by model.
 * A worker's line begins anew with its process and may go to another model's worker; the sums do
 * not, so they are made of differences.
 */
public final class Runners {
    /** Sums of one model since it was registered. */
    public static final class Totals {
        private final long[] values = new long[COUNTERS.length];

        public long preemptions() {
            return values[0];
        }

        public long parkedNs() {
            return values[1];
        }

        /** From the raised word until the worker stood still. */
        public long yieldNs() {
            return values[2];
        }

        public long drops() {
            return values[3];
        }
    }

    private static final int[] COUNTERS = {R_PREEMPTIONS, R_PARKED_NS, R_YIELD_NS, R_DROPS};

    private final ControlPage page;
    private final long[] pids = new long[RUNNER_COUNT];
    private final long[][] seen = new long[RUNNER_COUNT][COUNTERS.length];
    private Map<ModelSlot, Totals> totals = new IdentityHashMap<>();

    public Runners(final ControlPage page) {
        this.page = page;
    }

    /** Count what came since the last call; what a worker counted after it and before its end is lost. */
    public synchronized void observe(final Collection<ModelSlot> slots) {
        final Map<ModelSlot, Totals> kept = new IdentityHashMap<>();
        final Totals[] bySlot = new Totals[SLOT_COUNT];
        for (final ModelSlot slot : slots) {
            final Totals own = totals.getOrDefault(slot, new Totals());
            kept.put(slot, own);
            if (slot.index() >= 0) {
                bySlot[slot.index()] = own;
            }
        }
        totals = kept;
        for (int i = 0; i < RUNNER_COUNT; i++) {
            observe(i, bySlot);
        }
    }

    private void observe(final int runner, final Totals[] bySlot) {
        final int line = RUNNERS_OFFSET + runner * RUNNER_SIZE;
        final long pid = page.get(line + R_RUNNER_PID);
        final long slot = page.get(line + R_RUNNER_SLOT);
        final Totals own = pid != 0 && slot >= 0 && slot < SLOT_COUNT ? bySlot[(int) slot] : null;
        for (int i = 0; i < COUNTERS.length; i++) {
            final long value = Math.max(0, page.get(line + COUNTERS[i]));
            final boolean anew = pid != pids[runner] || value < seen[runner][i];
            if (own != null) {
                own.values[i] += anew ? value : value - seen[runner][i];
            }
            seen[runner][i] = value;
        }
        pids[runner] = pid;
    }

    /** The sums of a model. */
    public synchronized Totals of(final ModelSlot slot) {
        return totals.getOrDefault(slot, new Totals());
    }
}
