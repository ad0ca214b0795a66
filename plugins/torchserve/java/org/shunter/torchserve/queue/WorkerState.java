package org.shunter.torchserve.queue;

import java.util.EnumMap;
import java.util.Map;

/**
 * The life of a worker, as a table.
 *
 * <pre>
 *             STARTED    LOADED    LOST       RETRIED    DRAIN       END
 * STARTING    LOADING    -         BACKOFF    -          -           STOPPED
 * LOADING     -          READY     BACKOFF    -          -           STOPPED
 * READY       -          -         BACKOFF    -          DRAINING    STOPPED
 * DRAINING    -          -         STOPPED    -          -           STOPPED
 * BACKOFF     -          -         -          STARTING   -           STOPPED
 * </pre>
 */
public enum WorkerState {
    /** Its process is being started. */
    STARTING,
    /** It is connected and loads its model. */
    LOADING,
    /** It takes batches. */
    READY,
    /** It finishes what it holds and then stops. */
    DRAINING,
    /** It died and will be started again. */
    BACKOFF,
    /** It ended for good. */
    STOPPED;

    /** What happens to a worker. */
    public enum Event {
        STARTED,
        LOADED,
        LOST,
        RETRIED,
        DRAIN,
        END
    }

    private static final Map<WorkerState, Map<Event, WorkerState>> NEXT =
            new EnumMap<>(WorkerState.class);

    static {
        row(STARTING, Event.STARTED, LOADING, Event.LOST, BACKOFF);
        row(LOADING, Event.LOADED, READY, Event.LOST, BACKOFF);
        row(READY, Event.LOST, BACKOFF, Event.DRAIN, DRAINING);
        row(DRAINING, Event.LOST, STOPPED);
        row(BACKOFF, Event.RETRIED, STARTING);
        NEXT.put(STOPPED, new EnumMap<>(Event.class));
    }

    private static void row(final WorkerState from, final Object... pairs) {
        final Map<Event, WorkerState> row = new EnumMap<>(Event.class);
        row.put(Event.END, STOPPED);
        for (int i = 0; i < pairs.length; i += 2) {
            row.put((Event) pairs[i], (WorkerState) pairs[i + 1]);
        }
        NEXT.put(from, row);
    }

    /** The state after an event, or null when the event means nothing in this state. */
    public WorkerState after(final Event event) {
        return NEXT.get(this).get(event);
    }
}
