package org.shunter.torchserve.preemption;

import static org.shunter.torchserve.page.ControlLayout.*;

import org.shunter.torchserve.forming.RequestClass;

/**
 * How turns are taken now.
 *
 * @param strict order of strict batches, one of ORDER_...
 * @param bestEffort order of best-effort batches
 * @param exclusive whether batches of both classes take turns with each other, strict first
 */
public record TurnRules(int strict, int bestEffort, boolean exclusive) {
    /** Order of the batches of a class. */
    int order(final RequestClass requestClass) {
        final int own = requestClass == RequestClass.STRICT ? strict : bestEffort;
        return exclusive && own == ORDER_CONCURRENT ? ORDER_FIFO : own;
    }

    /** Whether batches of a class take turns on workers that stand still for strict work, or not. */
    public boolean apply(final RequestClass requestClass, final boolean yields) {
        return exclusive
                || order(requestClass) != ORDER_CONCURRENT
                        && (requestClass == RequestClass.STRICT || yields);
    }

    public boolean apply() {
        return exclusive || strict != ORDER_CONCURRENT || bestEffort != ORDER_CONCURRENT;
    }

    boolean conflict(final int a, final int b) {
        return exclusive || a == b;
    }

    /** Whether batches of a class that fit on the CPUs beside each other run together. */
    boolean share(final int c) {
        return !exclusive && c == RequestClass.BEST_EFFORT.ordinal();
    }
}
