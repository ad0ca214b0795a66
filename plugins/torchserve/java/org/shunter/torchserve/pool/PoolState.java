package org.shunter.torchserve.pool;

import java.util.EnumMap;
import java.util.Map;

/**
 * What happens to the workers of one model, as a table.
 *
 * <pre>
 *            RESIZE     REPLACE    SUCCEEDED  FAILED     SCALE      RETIRE
 * SERVING    RESIZING   REPLACING  -          -          SERVING    RETIRED
 * RESIZING   -          -          SERVING    SERVING    -          RETIRED
 * REPLACING  -          -          SERVING    SERVING    REPLACING  RETIRED
 * RETIRED    -          -          -          -          -          -
 * </pre>
 *
 * A scale call that means nothing while workers are added waits until that is over.
 */
enum PoolState {
    /** One generation serves, and nothing changes. */
    SERVING,
    /** Workers are being added to the generation that serves. */
    RESIZING,
    /** Another generation is being started beside the one that serves. */
    REPLACING,
    /** It is being scaled to 0 or removed; nothing starts a worker any more. */
    RETIRED;

    /** What happens to the workers. */
    public enum Event {
        /** A change begins that the processes survive. */
        RESIZE,
        /** A change begins that needs other processes. */
        REPLACE,
        /** The change under way serves. */
        SUCCEEDED,
        /** The change under way was undone. */
        FAILED,
        /** Another number of workers is wanted. */
        SCALE,
        /** No worker is wanted any more. */
        RETIRE
    }

    private static final Map<PoolState, Map<Event, PoolState>> NEXT =
            new EnumMap<>(PoolState.class);

    static {
        NEXT.put(
                SERVING,
                Map.of(
                        Event.RESIZE, RESIZING,
                        Event.REPLACE, REPLACING,
                        Event.SCALE, SERVING,
                        Event.RETIRE, RETIRED));
        NEXT.put(
                RESIZING,
                Map.of(Event.SUCCEEDED, SERVING, Event.FAILED, SERVING, Event.RETIRE, RETIRED));
        NEXT.put(
                REPLACING,
                Map.of(
                        Event.SUCCEEDED, SERVING,
                        Event.FAILED, SERVING,
                        Event.SCALE, REPLACING,
                        Event.RETIRE, RETIRED));
        NEXT.put(RETIRED, Map.of());
    }

    /** The state after an event, or null when the event means nothing in this state. */
    PoolState after(final Event event) {
        return NEXT.get(this).get(event);
    }

    /** Whether a change is under way. */
    boolean isChanging() {
        return this == RESIZING || this == REPLACING;
    }
}
