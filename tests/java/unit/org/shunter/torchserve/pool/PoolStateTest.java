package org.shunter.torchserve.pool;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.shunter.torchserve.pool.PoolState.REPLACING;
import static org.shunter.torchserve.pool.PoolState.RESIZING;
import static org.shunter.torchserve.pool.PoolState.RETIRED;
import static org.shunter.torchserve.pool.PoolState.SERVING;

import java.util.EnumSet;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import org.junit.jupiter.api.Test;
import org.shunter.torchserve.pool.PoolState.Event;

/** The table of what may happen to the workers of a model. */
final class PoolStateTest {
    private static final Map<PoolState, Map<Event, PoolState>> EXPECTED =
            Map.of(
                    SERVING,
                            Map.of(
                                    Event.RESIZE, RESIZING,
                                    Event.REPLACE, REPLACING,
                                    Event.SCALE, SERVING,
                                    Event.RETIRE, RETIRED),
                    RESIZING,
                            Map.of(
                                    Event.SUCCEEDED, SERVING,
                                    Event.FAILED, SERVING,
                                    Event.RETIRE, RETIRED),
                    REPLACING,
                            Map.of(
                                    Event.SUCCEEDED, SERVING,
                                    Event.FAILED, SERVING,
                                    Event.SCALE, REPLACING,
                                    Event.RETIRE, RETIRED),
                    RETIRED, Map.of());

    @Test
    void everyEventInEveryStateLeadsWhereTheTableSays() {
        for (final PoolState state : PoolState.values()) {
            for (final Event event : Event.values()) {
                assertEquals(
                        EXPECTED.get(state).get(event), state.after(event), state + " " + event);
            }
        }
    }

    /** A change begins only when none is under way, and ends once. */
    @Test
    void onAnyWalkChangesBeginAndEndInTurnAndARetiredPoolStaysSo() {
        for (int seed = 0; seed < 500; seed++) {
            final Random random = new Random(seed);
            PoolState state = SERVING;
            int underWay = 0;
            for (int step = 0; step < 50; step++) {
                final Event event = Event.values()[random.nextInt(Event.values().length)];
                final PoolState after = state.after(event);
                if (state == RETIRED) {
                    assertEquals(null, after, "seed " + seed);
                }
                if (after == null) {
                    continue;
                }
                if (Set.of(Event.RESIZE, Event.REPLACE).contains(event)) {
                    underWay++;
                } else if (EnumSet.of(Event.SUCCEEDED, Event.FAILED, Event.RETIRE).contains(event)) {
                    underWay = 0;
                }
                assertTrue(underWay <= 1, "seed " + seed);
                assertEquals(underWay == 1, after.isChanging(), "seed " + seed);
                state = after;
            }
        }
    }

    @Test
    void whileWorkersAreAddedAScaleCallWaits() {
        assertEquals(null, RESIZING.after(Event.SCALE));
        assertFalse(SERVING.isChanging());
    }
}
