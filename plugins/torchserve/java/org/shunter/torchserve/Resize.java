package org.shunter.torchserve;

import java.util.List;
import java.util.concurrent.CompletableFuture;

/**
 * A change of configuration that the processes survive: workers that are missing are added and
 * serve as soon as they have loaded; when all of them have, surplus ones are drained and caps
 * change. A transaction: when one does not load, those that were added end, and all stays as it was.
 */
final class Resize {
    private final Fleet fleet;
    private final Staff staff;
    private final Dispatcher dispatcher;
    private final Generation current;
    private final List<GroupConfig> wanted;
    private final boolean remember;

    Resize(
            final Fleet fleet,
            final Staff staff,
            final Dispatcher dispatcher,
            final List<GroupConfig> wanted,
            final boolean remember) {
        this.fleet = fleet;
        this.staff = staff;
        this.dispatcher = dispatcher;
        this.current = fleet.current();
        this.wanted = wanted;
        this.remember = remember;
    }

    /**
     * Start what is missing; the fleet's lock is held.
     *
     * @return completed when the configuration serves, exceptionally when it was undone
     */
    CompletableFuture<Void> begin() {
        assert Thread.holdsLock(fleet);
        final List<Worker> added = staff.fill(current, wanted);
        if (!added.isEmpty()) {
            dispatcher.setWorkers(current.workers());
            fleet.tell("resizing to " + GroupConfig.text(wanted));
        }
        return staff.loaded(added).thenAccept(status -> finish(status, added));
    }

    private void finish(final int status, final List<Worker> added) {
        synchronized (fleet) {
            if (!fleet.isChanging()) {
                return; // retired in the meantime
            }
            PoolState.Event outcome = PoolState.Event.FAILED;
            try {
                if (status != 200) {
                    undo(status, added);
                }
                staff.settle(current, wanted);
                fleet.serve(current);
                fleet.tell("resized to " + GroupConfig.text(wanted));
                outcome = PoolState.Event.SUCCEEDED;
            } finally {
                fleet.changed(outcome);
            }
            if (remember) {
                fleet.onChanged();
            }
        }
    }

    private void undo(final int status, final List<Worker> added) {
        final String why = staff.undo(added);
        dispatcher.setWorkers(current.workers());
        final String told = "resizing was undone: a worker did not load: status " + status + why;
        fleet.tell(told);
        throw new IllegalStateException(told);
    }
}
