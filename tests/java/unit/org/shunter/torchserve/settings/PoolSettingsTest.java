package org.shunter.torchserve.settings;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.pytorch.serve.http.BadRequestException;

/** Which models share processes, and how many there are. */
final class PoolSettingsTest {
    private static final PoolSettings TWO = new PoolSettings(false, 2, 0, 3, null);
    private static final PoolSettings ALL = new PoolSettings(true, 2, 0, 0, null);

    @Test
    void settingsAreALineOrTheEnvironment() {
        assertEquals(
                new PoolSettings(true, 3, 500, 2, "0-3"), PoolSettings.parse("1 3 500 2 0-3\n"));
        assertEquals(
                new PoolSettings(false, 64, 0, 0, null), PoolSettings.parse("0 99 -1 -1 -"));
        assertThrows(IllegalArgumentException.class, () -> PoolSettings.parse("1 3 500 2"));
        assertNull(PoolSettings.parse("0 1 0 0 auto").list());
        assertThrows(IllegalArgumentException.class, () -> PoolSettings.parse(""));
        assertThrows(IllegalArgumentException.class, () -> PoolSettings.parse("0 1 2 x -"));
        assertEquals(new PoolSettings(false, 1, 0, 0, null), PoolSettings.of(Map.of()));
        final Map<String, String> some =
                Map.of(
                        "SHUNTER_POOL_WORKERS",
                        "2",
                        "SHUNTER_POOL_HOT_MB",
                        "x",
                        "SHUNTER_POOL_CORES",
                        "auto");
        assertEquals(new PoolSettings(false, 2, 0, 0, "auto"), PoolSettings.of(some));
    }

    @Test
    void aModelThatSharesHasAWorkerInEachProcessAndIsNotChanged() {
        final ModelSettings shared =
                ModelSettings.of(Map.of("pool", "shared", "max_batch", 4)).inPool(TWO, 8);
        assertEquals(List.of(GroupConfig.of(2, 3, 4)), shared.configuration());
        assertTrue(shared.pool());
        assertFalse(shared.auto());
        final Map<String, Object> own = Map.of("pool", "shared", "configuration", "1x1x2");
        assertEquals("1x1x2", GroupConfig.text(ModelSettings.of(own).inPool(TWO, 8).configuration()));
    }

    @Test
    void othersShareOnlyWhereAllDoAndNothingSaysWhereTheyRun() {
        final ModelSettings silent = ModelSettings.of(Map.of());
        assertNull(silent.pool());
        assertSame(silent, silent.inPool(TWO, 8));
        assertEquals("2x0x8", GroupConfig.text(silent.inPool(ALL, 8).configuration()));
        final ModelSettings placed = ModelSettings.of(Map.of("cores", "0"));
        assertSame(placed, placed.inPool(ALL, 8));
        assertFalse(ModelSettings.of(Map.of("pool", "dedicated")).pool());
    }

    @Test
    void whatCannotBeIsRefused() {
        for (final Map<String, Object> section :
                List.<Map<String, Object>>of(
                        Map.of("pool", true),
                        Map.of("pool", "shared", "device", "0"))) {
            assertThrows(BadRequestException.class, () -> ModelSettings.of(section));
        }
    }

    @Test
    void aModelThatSharesStandsStillAsOthersDo() {
        for (final boolean yields : new boolean[] {true, false}) {
            final Map<String, Object> said = Map.of("pool", "shared", "preemptible", yields);
            assertEquals(yields, ModelSettings.of(said).inPool(TWO, 8).preemptible());
        }
        final Map<String, Object> cut =
                Map.of("pool", "shared", "preemptible", Map.of("segment_ms", 2));
        assertTrue(ModelSettings.of(cut).inPool(TWO, 8).preemptible());
        final Map<String, Object> bestEffort = Map.of("pool", "shared", "class", "best_effort");
        assertTrue(ModelSettings.of(bestEffort).inPool(TWO, 8).preemptible());
        assertNull(ModelSettings.of(Map.of("pool", "shared")).inPool(TWO, 8).preemptible());
    }
}
