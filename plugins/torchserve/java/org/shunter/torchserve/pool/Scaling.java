package org.shunter.torchserve.pool;

import java.net.HttpURLConnection;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import org.pytorch.serve.wlm.Model;
import org.shunter.torchserve.events.Level;
import org.shunter.torchserve.settings.GroupConfig;
import org.shunter.torchserve.worker.Worker;

/**
 * TorchServe's scale calls: how many workers users registered, how many the model needs, and the
 * call that waits for the end of a change. Writes are guarded by the pool's lock.
 */
public final class Scaling {
    private final WorkerPool pool;
    private final WorkerRoster roster;
    private final ServedModel served;
    private volatile WorkerCounts counts;
    private volatile int needed;
    /** The call that came during the change under way and counts after it, or null. */
    private Call asked;

    private record Call(WorkerCounts counts, CompletableFuture<Integer> result) {}

    Scaling(final WorkerPool pool, final WorkerRoster roster, final ServedModel served) {
        this.pool = pool;
        this.roster = roster;
        this.served = served;
        this.counts = WorkerCounts.of(served.model());
    }

    /** The numbers of workers that users asked for. */
    public WorkerCounts counts() {
        return counts;
    }

    /**
     * Whether the model has the workers that it needs. A change meanwhile makes none missing: its
     * numbers go down before workers go, and up after they have come.
     */
    public boolean isMet() {
        final int before = needed;
        final long healthy = pool.current().workers().stream().filter(Worker::isHealthy).count();
        return healthy >= Math.min(before, needed);
    }

    /**
     * Start or drain workers of the generation that serves.
     *
     * @return completed with an HTTP status as in stock: at the first failed load, or when all new
     *     workers are loaded and all surplus ones are gone
     */
    CompletableFuture<Integer> now(final WorkerCounts wanted) {
        assert Thread.holdsLock(pool);
        final int min = wanted.min();
        final int most = Math.max(min, wanted.max());
        counts = wanted;
        lower(min);
        final Generation current = pool.current();
        final int have = current.workers().size();
        final List<Worker> added = new ArrayList<>();
        final List<GroupConfig> before = current.configuration();
        try {
            for (int i = have; i < min; i++) {
                added.add(roster.start(current.growing()));
            }
            roster.fill(pool.network(), served.settings().network(), added);
        } catch (RuntimeException | Error e) { // the dispatcher would never hear of those
            roster.undo(added);
            current.groups.forEach(group -> group.setConfig(before.get(group.index)));
            throw e;
        }
        final List<Worker> leaving = new ArrayList<>();
        for (int i = have; i > most; i--) {
            leaving.add(roster.drainYoungest(current.shrinking()));
        }
        needed = min;
        pool.onScaled();
        final CompletableFuture<Integer> loaded = roster.loaded(added);
        return loaded.thenApply(status -> checkLoaded(status, added))
                .thenCombine(roster.gone(leaving), Math::max);
    }

    /** The status, unless there is more to be said of it; who is short of memory is told that. */
    private int checkLoaded(final int status, final List<Worker> added) {
        if (status != HttpURLConnection.HTTP_OK) {
            final String why = WorkerRoster.problemOf(added);
            pool.tell(Level.WARNING, "a worker did not load: status " + status + ": " + why);
            if (status == HttpURLConnection.HTTP_INTERNAL_ERROR && !why.isEmpty()) {
                final Model model = served.model();
                throw new InternalServerException( // as stock says it, and the reason
                        "Failed to start workers for model " + model.getModelName()
                                + " version: " + model.getVersion() + "; " + why);
            }
        }
        return status;
    }

    /** Remember a call until the change under way is over; a later one takes its place. */
    CompletableFuture<Integer> later(final WorkerCounts wanted) {
        assert Thread.holdsLock(pool);
        final Call superseded = asked;
        counts = wanted;
        asked = new Call(wanted, new CompletableFuture<>());
        if (superseded != null) {
            pass(asked.result, superseded.result);
        }
        return asked.result;
    }

    private static <T> void pass(final CompletableFuture<T> from, final CompletableFuture<T> to) {
        from.whenComplete(
                (value, error) -> {
                    if (error == null) {
                        to.complete(value);
                    } else {
                        to.completeExceptionally(error);
                    }
                });
    }

    /** A change is over; the call that waited for that counts now. */
    void again() {
        assert Thread.holdsLock(pool);
        final Call call = asked;
        asked = null;
        if (call == null) {
            return;
        }
        try {
            pass(now(call.counts), call.result);
            pool.onChanged();
        } catch (RuntimeException | Error e) { // an Error: no thread to be had; the change is over
            call.result.completeExceptionally(e);
        }
    }

    /** Nobody waits for that call any more, or it was obeyed when it came. */
    void forget(final RuntimeException why) {
        assert Thread.holdsLock(pool);
        if (asked != null) {
            asked.result.completeExceptionally(why);
            asked = null;
        }
    }

    /** No call counts any more, and no worker is needed. */
    void end(final RuntimeException why) {
        lower(0);
        forget(why);
    }

    /** Fewer may be there soon; before they are, so that {@code /ping} misses nobody at any time. */
    void lower(final int instances) {
        assert Thread.holdsLock(pool);
        needed = Math.min(needed, instances);
    }

    /** Another configuration serves; {@code explicit} says whether users gave its numbers. */
    void serve(final int instances, final boolean explicit) {
        assert Thread.holdsLock(pool);
        needed = instances;
        if (explicit && asked == null) {
            counts = counts.replaceBy(new WorkerCounts(instances, instances), served.model());
        }
    }

    /**
     * Workers did not load, and why. It has the name of stock's own, which stands in the answer as
     * its type, and is of the one kind that futures hand on as it is.
     */
    private static final class InternalServerException extends CompletionException {
        private static final long serialVersionUID = 1L;

        InternalServerException(final String text) {
            super(text);
        }
    }
}
