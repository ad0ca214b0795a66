package org.shunter.torchserve.pool;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import org.shunter.torchserve.dispatch.Dispatcher;
import org.shunter.torchserve.events.Level;
import org.shunter.torchserve.settings.GroupConfig;
import org.shunter.torchserve.worker.Worker;

/**
 * A change of configuration that the processes survive: workers that are missing are added and
 * serve as soon as they have loaded; when all of them have, surplus ones are drained and caps
 * change. A transaction: when one does not load, those that were added end, and all stays as it was.
 */
final class Resize {
    private final WorkerPool pool;
    private final WorkerRoster roster;
    private final Dispatcher dispatcher;
    private final Generation current;
    private final List<GroupConfig> wanted;
    private final boolean remember;

    Resize(
            final WorkerPool pool,
            final WorkerRoster roster,
            final Dispatcher dispatcher,
            final List<GroupConfig> wanted,
            final boolean remember) {
        this.pool = pool;
        this.roster = roster;
        this.dispatcher = dispatcher;
        this.current = pool.current();
        this.wanted = wanted;
        this.remember = remember;
    }

    /**
     * Start what is missing; the pool's lock is held.
     *
     * @return completed when the configuration serves, exceptionally when it was undone
     */
    CompletableFuture<Void> begin() {
        assert Thread.holdsLock(pool);
        final List<Worker> added = new ArrayList<>();
        try {
            roster.fill(current, wanted, added);
        } catch (RuntimeException | Error e) { // else the change would be under way for ever
            roster.undo(added);
            pool.changed(PoolState.Event.FAILED);
            throw e;
        }
        if (!added.isEmpty()) {
            dispatcher.setWorkers(current.workers());
            pool.tell(Level.INFO, "resizing to " + GroupConfig.text(wanted));
        }
        return roster.loaded(added).thenAccept(status -> finish(status, added));
    }

    private void finish(final int status, final List<Worker> added) {
        synchronized (pool) {
            if (!pool.isChanging()) {
                return; // retired in the meantime
            }
            PoolState.Event outcome = PoolState.Event.FAILED;
            try {
                if (status != 200) {
                    undo(status, added);
                }
                pool.scaling().lower(GroupConfig.instances(wanted));
                roster.settle(current, wanted);
                pool.serve(current);
                pool.tell(Level.INFO, "resized to " + GroupConfig.text(wanted));
                outcome = PoolState.Event.SUCCEEDED;
            } finally {
                pool.changed(outcome);
            }
            if (remember) {
                pool.onChanged();
            }
        }
    }

    private void undo(final int status, final List<Worker> added) {
        final String why = roster.undo(added);
        dispatcher.setWorkers(current.workers());
        final String told = "resizing was undone: a worker did not load: status " + status + why;
        pool.tell(Level.WARNING, told);
        throw new IllegalStateException(told);
    }
}
