package org.shunter.torchserve.pool;

import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.shunter.torchserve.dispatch.Dispatcher;
import org.shunter.torchserve.host.Host;
import org.shunter.torchserve.queue.WorkerState;
import org.shunter.torchserve.worker.Worker;

/**
 * The end of a model: what waits is served, as long as that may take, then all workers end. Over
 * when their processes are gone, so that the next model finds their memory.
 */
final class Retirement {
    private static final int LOOK_MS = 5;
    /** Who does not end by itself has been killed by then. */
    private static final int KILLED_S = 20;

    private final Host host;
    private final String name;
    private final Dispatcher dispatcher;
    private final Generation last;
    private final CompletableFuture<Integer> done = new CompletableFuture<>();

    Retirement(
            final Host host,
            final String name,
            final Dispatcher dispatcher,
            final Generation last) {
        this.host = host;
        this.name = name;
        this.dispatcher = dispatcher;
        this.last = last;
    }

    /** Completed with 200 when it is over; from now on the dispatcher takes nothing new. */
    CompletableFuture<Integer> begin(final List<Worker> ending) {
        dispatcher.refuse("Model \"" + name + "\" has no worker: it is being scaled to 0 or removed");
        if (ending.stream().noneMatch(worker -> worker.state == WorkerState.READY)) {
            failWaiting();
        }
        final long timeoutS = host.config().getUnregisterModelTimeout();
        goOn(ending, System.nanoTime() + TimeUnit.SECONDS.toNanos(timeoutS));
        return done;
    }

    private void goOn(final List<Worker> ending, final long deadlineNs) {
        if (!dispatcher.isIdle() && System.nanoTime() - deadlineNs < 0) {
            host.timer().schedule(() -> goOn(ending, deadlineNs), LOOK_MS, TimeUnit.MILLISECONDS);
            return;
        }
        // First of all, so that what an ended worker held is not given to the next to be ended.
        dispatcher.setWorkers(List.of());
        last.groups.forEach(group -> group.workers.clear());
        ending.forEach(Worker::end);
        failWaiting();
        final CompletableFuture<?>[] gone =
                ending.stream().map(worker -> worker.ended).toArray(CompletableFuture<?>[]::new);
        // Not here: this may be the timer's thread, and who waits for it may wait for the timer.
        CompletableFuture.allOf(gone)
                .completeOnTimeout(null, KILLED_S, TimeUnit.SECONDS)
                .thenRunAsync(() -> done.complete(200), host::execute)
                .exceptionally( // no thread to be had: better here than never
                        noThread -> {
                            done.complete(200);
                            return null;
                        });
    }

    private void failWaiting() {
        dispatcher.failWaiting(503, "Model \"" + name + "\" was removed");
    }
}
