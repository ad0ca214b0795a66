package org.shunter.torchserve.pool;

import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.shunter.torchserve.events.Level;
import org.shunter.torchserve.host.Host;
import org.shunter.torchserve.queue.WorkerGroup;
import org.shunter.torchserve.settings.GroupConfig;
import org.shunter.torchserve.worker.Worker;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Starts a generation beside the one that serves, and lets it take over when all of it has loaded.
 * A transaction: any failure ends what was started, and the old generation keeps serving.
 */
final class GenerationChange {
    private final CompletableFuture<Void> done = new CompletableFuture<>();

    private static final Logger LOGGER = LoggerFactory.getLogger(GenerationChange.class);

    private final WorkerPool pool;
    private final WorkerRoster roster;
    private final Generation started;
    private final long loadTimeoutS;
    private final boolean remember;

    GenerationChange(
            final WorkerPool pool,
            final WorkerRoster roster,
            final Generation started,
            final long startupTimeoutS,
            final boolean remember) {
        this.pool = pool;
        this.roster = roster;
        this.started = started;
        this.remember = remember;
        this.loadTimeoutS = Worker.LISTEN_TIMEOUT_S + startupTimeoutS;
    }

    /** Completed when the new generation serves, or exceptionally when the old one stays. */
    CompletableFuture<Void> begin(final Host host) {
        pool.tell(Level.INFO, "starting generation " + started.id);
        final String wanted = GroupConfig.text(started.configuration());
        LOGGER.info("{}: {} {}", pool, pool.lastChange(), wanted);
        try {
            host.execute(this::run);
        } catch (RuntimeException | Error e) { // no thread to be had
            undo(e);
        }
        return done;
    }

    private void run() {
        try {
            startAll();
            takeOver();
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            undo(e);
            return;
        } catch (TimeoutException e) {
            undo(new IllegalStateException("a worker did not load in " + loadTimeoutS + " s", e));
            return;
        } catch (ExecutionException | RuntimeException | Error e) {
            undo(e); // an Error too: else the change would be under way for ever
            return;
        }
        done.complete(null);
        if (remember) {
            pool.onChanged();
        }
    }

    /** One worker after another: loading costs cores that the old generation serves with. */
    private void startAll() throws InterruptedException, ExecutionException, TimeoutException {
        for (final WorkerGroup<Worker> group : started.groups) {
            for (int i = group.config().instances(); i > 0; i--) {
                final Worker worker;
                synchronized (pool) { // who retires the model meets this worker, or prevents it
                    checkPending();
                    worker = roster.start(group);
                }
                final int status = worker.firstLoad.get(loadTimeoutS, TimeUnit.SECONDS);
                if (status != 200) {
                    throw new IllegalStateException(
                            worker + " did not load: status " + status + ": " + worker.problem());
                }
            }
        }
    }

    private void checkPending() {
        if (!pool.isPending(started)) {
            throw new IllegalStateException("the model was removed meanwhile");
        }
    }

    /** Batches go to the new generation from now on; the old one finishes and ends. */
    private void takeOver() {
        synchronized (pool) {
            checkPending();
            final Generation old = pool.current();
            roster.retireSoon(old.workers()); // first, so that nobody misses them in between
            pool.serve(started);
            old.workers().forEach(roster::drain);
            pool.tell(Level.INFO, "generation " + started.id + " serves");
            LOGGER.info("{}: {}", pool, pool.lastChange());
            pool.changed(PoolState.Event.SUCCEEDED);
        }
    }

    private void undo(final Throwable e) {
        started.workers().forEach(Worker::end);
        final String reason = e.getMessage() == null ? e.toString() : e.getMessage();
        synchronized (pool) {
            pool.tell(Level.WARNING, "generation " + started.id + " was undone: " + reason);
            LOGGER.error(
                    "{}: {}; generation {} keeps serving",
                    pool,
                    pool.lastChange(),
                    pool.current().id);
            if (pool.isPending(started)) {
                pool.changed(PoolState.Event.FAILED);
            }
        }
        done.completeExceptionally(e);
    }
}
