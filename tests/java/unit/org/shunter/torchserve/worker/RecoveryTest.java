package org.shunter.torchserve.worker;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import org.junit.jupiter.api.Test;

/** When a worker that fails is tried again, and for how long. */
final class RecoveryTest {
    private static final long MS = 1_000_000L;

    private final Recovery recovery = new Recovery();

    @Test
    void itIsGivenUpOnceItHasFailedForTooLongSinceItWorked() {
        final long began = -5 * MS; // the clock may begin anywhere
        assertTrue(recovery.isWithin(10, began));
        assertTrue(recovery.failed(began));
        assertFalse(recovery.failed(began + 6 * MS));
        assertTrue(recovery.isWithin(10, began + 10 * MS - 1));
        assertFalse(recovery.isWithin(10, began + 10 * MS));
        assertTrue(recovery.isWithin(Long.MAX_VALUE, began + 10 * MS));
        assertTrue(recovery.worked());
        assertFalse(recovery.worked());
        assertTrue(recovery.isWithin(10, began + 10 * MS));
        assertTrue(recovery.failed(began + 20 * MS));
        assertTrue(recovery.isWithin(10, began + 21 * MS));
    }

    @Test
    void itWaitsLongerEachTimeAndNotAtAllOnceItHasEnded() {
        final ScheduledThreadPoolExecutor timer = new ScheduledThreadPoolExecutor(1);
        timer.setRemoveOnCancelPolicy(true);
        final List<Integer> waits = new ArrayList<>();
        for (int i = 0; i < 30; i++) {
            waits.add(recovery.tryAgain(timer, () -> {}));
        }
        assertEquals(List.of(0, 1, 1, 2, 3, 5), waits.subList(0, 6));
        assertEquals(1597, waits.get(29));
        timer.getQueue().clear();
        recovery.tryAgain(timer, () -> {});
        assertEquals(1, timer.getQueue().size());
        recovery.end();
        recovery.tryAgain(timer, () -> {});
        assertEquals(0, timer.getQueue().size());
        timer.shutdownNow();
    }
}
