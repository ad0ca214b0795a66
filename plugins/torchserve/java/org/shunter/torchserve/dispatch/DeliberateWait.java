package org.shunter.torchserve.dispatch;

import org.shunter.torchserve.forming.AdaptiveThreshold;
import org.shunter.torchserve.forming.Threshold;
import org.shunter.torchserve.page.Commands;
import org.shunter.torchserve.queue.Entry;

/**
 * For how many requests free workers wait: what the operator fixed, a full batch where the model
 * wants company, or what followed the answers so far. Guarded by its dispatcher's lock.
 */
final class DeliberateWait {
    /** More than any batch holds: the rule bounds it by what the workers take. */
    private static final double FULL = 1 << 20;

    private final Commands commands;
    private final long registeredWaitUs;
    private final boolean company;
    private final AdaptiveThreshold adaptive = new AdaptiveThreshold();

    DeliberateWait(final Commands commands, final long registeredWaitUs, final boolean company) {
        this.commands = commands;
        this.registeredWaitUs = registeredWaitUs;
        this.company = company;
    }

    /** Whether the workers wait by what they have seen. */
    boolean adapts() {
        return !company && commands.thresholdFixed == 0;
    }

    /** Whether a free worker waits for a full batch; a fixed threshold goes before that. */
    boolean wantsCompany() {
        return company && commands.thresholdFixed == 0;
    }

    /** Longest deliberate wait. */
    long maxWaitUs() {
        return Math.min(commands.maxWaitUs, registeredWaitUs);
    }

    /** Time passes; before each arrival is counted. */
    void settle(final long now, final long arrivals) {
        adaptive.settle(now, arrivals);
    }

    /** A batch of that size was answered; one less may save {@code worthNs}. */
    void answered(
            final long now,
            final int size,
            final long waiting,
            final long arrivals,
            final long worthNs) {
        adaptive.tune(commands.alpha, commands.thresholdCap);
        final long holdNs = AdaptiveThreshold.holdNs(worthNs, maxWaitUs() * 1000);
        adaptive.answered(now, size, waiting, arrivals, holdNs);
    }

    /** Requests worth a batch, per worker. */
    double threshold() {
        if (commands.thresholdFixed > 0) {
            return commands.thresholdFixed;
        }
        return company ? FULL : adaptive.value();
    }

    /**
     * Requests for which so many free workers wait now.
     *
     * @param freeSinceNs when the first of them got free
     * @param othersWait requests of the other class could use the time
     */
    double wanted(
            final long now,
            final int freeWorkers,
            final long freeSinceNs,
            final boolean othersWait) {
        if (!adapts()) {
            return threshold();
        }
        return othersWait ? Threshold.IDLE : adaptive.worth(now, freeWorkers, freeSinceNs);
    }

    /** They do wait; returns until when at most. */
    long held() {
        if (!adapts()) {
            return Entry.NEVER;
        }
        adaptive.held();
        return adaptive.holdEndNs();
    }
}
