package org.shunter.torchserve.dispatch;

import java.util.function.LongSupplier;
import org.shunter.torchserve.queue.Wakeup;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Runs parts of a dispatcher's work. A fault costs what it interrupts, not the answers that are on
 * their way; what waits is looked at again.
 */
final class FaultGuard {
    private static final Logger LOGGER = LoggerFactory.getLogger(Dispatcher.class);
    private static final long AFTER_FAULT_NS = 100_000_000L;

    private final String name;
    private final Wakeup wakeup;
    private final LongSupplier clock;

    FaultGuard(final String name, final Wakeup wakeup, final LongSupplier clock) {
        this.name = name;
        this.wakeup = wakeup;
        this.clock = clock;
    }

    void run(final String what, final Runnable action) {
        try {
            action.run();
        } catch (RuntimeException e) {
            LOGGER.error("{}: {} failed", name, what, e);
            final long now = clock.getAsLong();
            wakeup.at(now + AFTER_FAULT_NS, now);
        }
    }
}
