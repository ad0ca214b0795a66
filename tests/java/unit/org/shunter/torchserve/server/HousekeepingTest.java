package org.shunter.torchserve.server;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Assertions;
import org.junit.jupiter.api.Test;

/** What goes wrong for one model keeps nothing else from happening. */
final class HousekeepingTest {
    @Test
    void aFaultSkipsNothingElseAndAnErrorEndsNothing() {
        final Housekeeping.Faults faults = new Housekeeping.Faults();
        final List<String> kept = new ArrayList<>();
        for (int round = 0; round < 3; round++) {
            for (final String model : List.of("a", "faulty", "broken", "b")) {
                faults.attempt(
                        model,
                        () -> {
                            if (model.equals("faulty")) {
                                throw new IllegalStateException("told to fail");
                            }
                            if (model.equals("broken")) {
                                throw new NoClassDefFoundError("told to fail");
                            }
                            kept.add(model);
                        });
            }
        }
        assertEquals(List.of("a", "b", "a", "b", "a", "b"), kept);
    }

    /** An executor never again calls a task that threw. */
    @Test
    void theTimerCallsAgainAfterAnError() throws InterruptedException {
        final ScheduledExecutorService timer = Executors.newSingleThreadScheduledExecutor();
        final Housekeeping.Faults faults = new Housekeeping.Faults();
        final CountDownLatch calls = new CountDownLatch(3);
        timer.scheduleAtFixedRate(
                () ->
                        faults.attempt(
                                "it",
                                () -> {
                                    calls.countDown();
                                    throw new StackOverflowError("told to fail");
                                }),
                0,
                1,
                TimeUnit.MILLISECONDS);
        Assertions.assertTrue(calls.await(60, TimeUnit.SECONDS));
        timer.shutdownNow();
    }
}
