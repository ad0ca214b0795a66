package org.shunter.torchserve.worker;

import io.netty.buffer.ByteBuf;
import java.io.IOException;
import java.util.Queue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import org.shunter.torchserve.dispatch.Dispatcher;
import org.shunter.torchserve.host.Host;
import org.shunter.torchserve.queue.Batch;
import org.shunter.torchserve.queue.Loss;
import org.shunter.torchserve.queue.Reply;
import org.shunter.torchserve.queue.WorkerState;
import org.shunter.torchserve.stock.StockLog;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** One process and its connection. What an earlier one still says is not heard. */
final class WorkerLife implements WorkerConnection.Listener {
    private static final Logger LOGGER = LoggerFactory.getLogger(WorkerLife.class);
    /** Killed by signal 9, as the kernel does when memory is out. */
    private static final int OUT_OF_MEMORY = 137;
    /** Of a seat whose process went by another model's batch; {@code handlers/pool/handover.py}. */
    private static final int UNBEGUN = 75;
    /** So long after its connection closed, a process has ended, or is not waited for any more. */
    private static final long EXIT_MS = 500;
    static final long GRACE_MS = 5000;
    /** It answers what the network front end gave it first, which it may take 10 s for. */
    private static final long NETWORK_GRACE_MS = 12_000;

    private final Host host;
    private final WorkerModel served;
    private final Worker worker;
    private final Dispatcher dispatcher;
    final long startedNs = System.nanoTime();
    final Queue<Batch> outbox = new ConcurrentLinkedQueue<>();
    volatile WorkerProcess process;
    volatile WorkerConnection connection;
    volatile Future<?> loadTimeout;
    volatile boolean loaded;
    /** Why it did not load its model, when it said so. */
    volatile String refusal;
    /** Why it is ended, when that is ours to say: its death may be heard before that is. */
    private volatile String fault;
    /** Only for the connection's thread. */
    private boolean writing;
    /** Its end is heard once: a failure is followed by the end of its connection. */
    final AtomicBoolean over = new AtomicBoolean();
    /** Completed when it has no process any more, or will have none. */
    final CompletableFuture<Void> gone = new CompletableFuture<>();

    WorkerLife(final Host host, final WorkerModel served, final Worker worker) {
        this.host = host;
        this.served = served;
        this.worker = worker;
        this.dispatcher = served.dispatcher();
    }

    void begin() throws IOException, InterruptedException {
        worker.address.clean();
        final WorkerLaunch launch =
                WorkerLaunch.of(
                        host,
                        served,
                        worker.group,
                        worker.address,
                        worker.gpuId,
                        worker.pool,
                        served.neighboursOf(worker));
        LOGGER.debug("{} command line: {}", launch.name(), launch.command());
        process = WorkerProcess.start(launch);
        host.watch(process.process());
        process.onExit(
                () -> {
                    gone.complete(null);
                    hangUpSoon();
                });
        if (worker.state == WorkerState.STOPPED) { // who ended it may have seen no process yet
            release();
            return;
        }
        process.awaitListening(Worker.LISTEN_TIMEOUT_S);
        if (!dispatcher.change(worker, WorkerState.Event.STARTED)) {
            release();
            return;
        }
        final long timeoutS = served.model().getStartupTimeout();
        loadTimeout =
                host.timer()
                        .schedule(
                                () -> {
                                    final String cause =
                                            "the model did not load within " + timeoutS + " s";
                                    StockLog.workerError(cause);
                                    fail(cause);
                                },
                                timeoutS,
                                TimeUnit.SECONDS);
        connection =
                WorkerConnection.open(
                        host.backendGroup(), worker.address, host.config().getMaxResponseSize(), this);
        connection.write(
                BatchEncoder.encodeLoad(
                        served.model(), worker.gpuId, served.loadedFor(worker.group), connection.allocator()));
    }

    /** A child that a handler has forked may keep its connection open, by which nothing comes. */
    private void hangUpSoon() {
        host.timer()
                .schedule(
                        () -> {
                            final WorkerConnection open = connection;
                            if (open != null) {
                                open.close();
                            }
                        },
                        EXIT_MS,
                        TimeUnit.MILLISECONDS);
    }

    void writeOutbox() {
        if (writing) {
            return; // what a batch that cannot be written leads to is written after it
        }
        writing = true;
        try {
            for (Batch batch = outbox.poll(); batch != null; batch = outbox.poll()) {
                write(batch);
            }
        } finally {
            writing = false;
        }
    }

    private void write(final Batch batch) {
        if (!connection.isOpen()) {
            return; // it is taken back, and was not begun
        }
        final ByteBuf message;
        try {
            message = BatchEncoder.encode(batch.entries, connection.allocator());
        } catch (RuntimeException | OutOfMemoryError e) {
            LOGGER.error("{} requests for {} could not be written", batch.size(), worker, e);
            StockLog.serverError(e);
            final int status = e instanceof Error ? Loss.INSUFFICIENT_STORAGE : 500;
            dispatcher.onUnsent(
                    worker, batch, status, "The request could not be sent to a worker: " + e);
            return;
        }
        batch.sent = true;
        connection.write(message);
    }

    @Override
    public void onReply(final Reply reply) {
        if (!worker.isCurrent(this)) {
            return;
        }
        try {
            if (loaded) {
                WorkerOutput.takeMetrics(reply);
                if (!dispatcher.onReply(worker, reply)) {
                    LOGGER.info("An answer of {} came after it was given up", worker);
                }
            } else {
                worker.onLoadReply(this, reply);
            }
        } catch (RuntimeException e) {
            LOGGER.error("Reply of {} was not handled", worker, e);
            StockLog.serverError(e);
            fail("its reply was not understood: " + e);
        }
    }

    /** How its process ended tells what to answer, and is known a moment later. */
    @Override
    public void onClosed(final String cause) {
        if (loaded) {
            process.afterExit(EXIT_MS, () -> lostByDeath(cause));
        } else if (refusal != null) {
            worker.lost(this, Loss.died(500, refusal));
        } else { // why it ended is in the last lines that it printed
            process.lastWords()
                    .thenAccept(why -> lostByDeath(why.isEmpty() ? cause : cause + ": " + why));
        }
    }

    private void lostByDeath(final String cause) {
        final Integer status = process.exitStatus();
        if (status != null && status == UNBEGUN && worker.pool >= 0) {
            worker.lost(this, Loss.unbegun(cause));
            return;
        }
        final String why = fault == null ? cause : fault;
        worker.lost(this, Loss.died(ranOutOfMemory() ? Loss.INSUFFICIENT_STORAGE : 500, why));
    }

    /** End the process because it misbehaves; the worker starts another. */
    void fail(final String cause) {
        final WorkerProcess running = process;
        if (running != null && running.exitStatus() == null) {
            fault = cause;
            running.kill();
        }
        worker.lost(this, Loss.died(500, cause));
    }

    void release() {
        cancelLoadTimeout();
        final WorkerConnection open = connection;
        if (open != null) {
            open.close();
        }
        final WorkerProcess running = process;
        if (running != null && open == null) {
            running.kill(); // it was given nothing, and has no connection whose end would end it
        } else if (running != null) {
            running.killAfter(host, worker.group.isNetwork ? NETWORK_GRACE_MS : GRACE_MS);
        }
        outbox.clear();
    }

    void cancelLoadTimeout() {
        final Future<?> timeout = loadTimeout;
        if (timeout != null) {
            timeout.cancel(false);
        }
    }

    boolean ranOutOfMemory() {
        final Integer status = process == null ? null : process.exitStatus();
        return fault == null && status != null && status == OUT_OF_MEMORY;
    }
}
