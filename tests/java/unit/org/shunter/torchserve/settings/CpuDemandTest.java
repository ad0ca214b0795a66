package org.shunter.torchserve.settings;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Test;

/** How many CPUs a configuration wants, and what is said of too many. */
final class CpuDemandTest {
    private static final int HERE = Runtime.getRuntime().availableProcessors();

    private static CpuDemand of(final String text, final String cores) {
        final List<GroupConfig> groups = new ArrayList<>();
        GroupConfig.parse("configuration", text).forEach(g -> groups.add(g.withCores(cores)));
        return CpuDemand.of(groups);
    }

    @Test
    void threadsCountForEachInstanceOfEachGroup() {
        assertEquals(new CpuDemand(32, 32, HERE), of("8x4x4", "auto"));
        assertEquals(new CpuDemand(0, 32, HERE), of("8x4x4", null));
        assertEquals(new CpuDemand(0, 5, HERE), of("1x1x1,2x2x4", "0-3"));
        assertEquals(new CpuDemand(0, 0, HERE), of("9x0x1", "auto")); // threads are the handler's
    }

    @Test
    void whatCannotBePinnedIsNamedWithItsNumbers() {
        assertTrue(new CpuDemand(32, 32, 2).whyNotPinned().contains("32 threads, 2 CPUs"));
        assertNull(new CpuDemand(2, 32, 2).whyNotPinned());
    }

    @Test
    void crowdingIsTold() {
        assertTrue(new CpuDemand(0, 3, 2).warning().contains("3 threads share 2 CPUs"));
        assertNull(new CpuDemand(0, 2, 2).warning());
    }
}
