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
import org.shunter.torchserve.host.WorkerAddress;
import org.shunter.torchserve.queue.Batch;
import org.shunter.torchserve.queue.BatchWorker;
import org.shunter.torchserve.queue.Loss;
import org.shunter.torchserve.queue.Reply;
import org.shunter.torchserve.queue.WorkerGroup;
import org.shunter.torchserve.queue.WorkerState;
import org.shunter.torchserve.stock.StockLog;
import org.shunter.torchserve.stock.StockMetrics;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * One worker of one model: a process and a connection, and the batches it was given. It lives
 * through several processes when they die.
 *
 * <p>Batches are written in the order in which they were put into {@code outbox} under the
 * dispatcher's lock, on the connection's thread.
 */
public final class Worker extends BatchWorker {
    private static final Logger LOGGER = LoggerFactory.getLogger(Worker.class);
    private static final int[] BACK_OFF_S = {
        0, 1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610, 987, 1597
    };
    /** Killed by signal 9, as the kernel does when memory is out. */
    private static final int OUT_OF_MEMORY = 137;
    /** So long after its connection closed, a process has ended, or is not waited for any more. */
    private static final long EXIT_MS = 500;
    private static final long GRACE_MS = 5000;
    /** It answers what the network front end gave it first, which it may take 10 s for. */
    private static final long NETWORK_GRACE_MS = 12_000;
    /** A process may take so long until it listens; loading has the model's own time-out. */
    public static final long LISTEN_TIMEOUT_S = 120;

    public final WorkerAddress address;
    public final int gpuId;
    public final long createdMs = System.currentTimeMillis();
    /** Completed with an HTTP status when the first load succeeded or failed. */
    public final CompletableFuture<Integer> firstLoad = new CompletableFuture<>();

    /** Completed when the worker has ended for good and its process is gone. */
    public final CompletableFuture<Void> ended = new CompletableFuture<>();

    public volatile int restarts;

    private final Host host;
    private final WorkerModel served;
    private final Dispatcher dispatcher;
    private volatile Life life;
    private volatile long unhealthySinceMs;
    private volatile String problem = "";
    private int backOff = -1;

    public Worker(
            final Host host,
            final WorkerModel served,
            final WorkerGroup<Worker> group,
            final WorkerAddress address,
            final int gpuId) {
        super(group);
        this.host = host;
        this.served = served;
        this.dispatcher = served.dispatcher();
        this.address = address;
        this.gpuId = gpuId;
    }

    /** One process and its connection. What an earlier one still says is not heard. */
    private final class Life implements WorkerConnection.Listener {
        final long startedNs = System.nanoTime();
        final Queue<Batch> outbox = new ConcurrentLinkedQueue<>();
        volatile WorkerProcess process;
        volatile WorkerConnection connection;
        volatile Future<?> loadTimeout;
        volatile boolean loaded;
        /** Why it did not load its model, when it said so. */
        volatile String refusal;
        /** Only for the connection's thread. */
        private boolean writing;
        /** Its end is heard once: a failure is followed by the end of its connection. */
        final AtomicBoolean over = new AtomicBoolean();
        /** Completed when it has no process any more, or will have none. */
        final CompletableFuture<Void> gone = new CompletableFuture<>();

        void begin() throws IOException, InterruptedException {
            address.clean();
            final WorkerLaunch launch =
                    WorkerLaunch.of(
                            host,
                            served,
                            group,
                            address,
                            gpuId,
                            served.neighboursOf(Worker.this));
            LOGGER.debug("{} command line: {}", launch.name(), launch.command());
            process = WorkerProcess.start(launch);
            host.watch(process.process());
            process.onExit(() -> gone.complete(null));
            process.awaitListening(LISTEN_TIMEOUT_S);
            if (!dispatcher.change(Worker.this, WorkerState.Event.STARTED)) {
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
                            host.backendGroup(), address, host.config().getMaxResponseSize(), this);
            connection.write(
                    BatchEncoder.encodeLoad(
                            served.model(), gpuId, served.loadedFor(group), connection.allocator()));
        }

        void writeOutbox() {
            if (writing) {
                return; // what a batch that cannot be written leads to is written after it
            }
            writing = true;
            for (Batch batch = outbox.poll(); batch != null; batch = outbox.poll()) {
                write(batch);
            }
            writing = false;
        }

        private void write(final Batch batch) {
            if (!connection.isOpen()) {
                return; // it is taken back, and was not begun
            }
            final ByteBuf message;
            try {
                message = BatchEncoder.encode(batch.entries, connection.allocator());
            } catch (RuntimeException | OutOfMemoryError e) {
                LOGGER.error("{} requests for {} could not be written", batch.size(), Worker.this, e);
                StockLog.serverError(e);
                final int status = e instanceof Error ? Loss.INSUFFICIENT_STORAGE : 500;
                dispatcher.onUnsent(
                        Worker.this, batch, status, "The request could not be sent to a worker: " + e);
                return;
            }
            batch.sent = true;
            connection.write(message);
        }

        @Override
        public void onReply(final Reply reply) {
            if (this != life) {
                return;
            }
            try {
                if (loaded) {
                    WorkerOutput.takeMetrics(reply);
                    dispatcher.onReply(Worker.this, reply);
                } else {
                    onLoadReply(this, reply);
                }
            } catch (RuntimeException e) {
                LOGGER.error("Reply of {} was not handled", Worker.this, e);
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
                lost(this, Loss.died(500, refusal));
            } else { // why it ended is in the last lines that it printed
                process.lastWords()
                        .thenAccept(why -> lostByDeath(why.isEmpty() ? cause : cause + ": " + why));
            }
        }

        private void lostByDeath(final String cause) {
            lost(this, Loss.died(ranOutOfMemory() ? Loss.INSUFFICIENT_STORAGE : 500, cause));
        }

        /** End the process because it misbehaves; the worker starts another. */
        void fail(final Loss loss) {
            final WorkerProcess running = process;
            if (running != null) {
                running.kill();
            }
            lost(this, loss);
        }

        void fail(final String cause) {
            fail(Loss.died(500, cause));
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
                running.killAfter(host, group.isNetwork ? NETWORK_GRACE_MS : GRACE_MS);
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
            return status != null && status == OUT_OF_MEMORY;
        }
    }

    public int pid() {
        final Life now = life;
        return now == null || now.process == null ? -1 : now.process.pid();
    }

    /** Whether it has a process, ended or not. */
    public boolean isAlive() {
        final Life now = life;
        return now != null && now.process != null && now.process.exitStatus() == null;
    }

    /** Whether its device is named by its configuration, not by a number of TorchServe. */
    public boolean hasDevice() {
        return served.placed(group.config()).device() != null;
    }

    /** Why its last process ended or did not load, in a line; empty when none did. */
    public String problem() {
        return problem;
    }

    /** Whether it runs a batch; read without the lock, for people and telemetry. */
    public boolean isBusy() {
        return held > 0;
    }

    @Override
    public int cap() {
        return served.cap(group);
    }

    /** Start the process, connect and load; runs on a pool thread. */
    public void start() {
        final Life begun = new Life();
        life = begun; // before the state is read: who ends it now sees this process or prevents it
        if (state == WorkerState.STOPPED) {
            begun.gone.complete(null);
            return;
        }
        try {
            begun.begin();
        } catch (IOException | RuntimeException | Error e) { // else its first load would never end
            if (e instanceof IOException) {
                StockLog.workerError(e.getMessage());
            } else {
                StockLog.serverError(e);
            }
            begun.fail(e.getMessage() == null ? e.toString() : e.getMessage());
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            begun.fail("interrupted");
        }
        if (begun.process == null) {
            begun.gone.complete(null);
        }
    }

    @Override
    public void enqueue(final Batch batch) {
        life.outbox.add(batch);
    }

    /**
     * Always on the connection's own thread: a write from another thread could be overtaken by one
     * from there.
     */
    @Override
    public void flush() {
        final Life now = life;
        final WorkerConnection open = now.connection;
        if (open != null) { // else it died in the meantime and its batches were taken back
            open.execute(now::writeOutbox);
        }
    }

    private void onLoadReply(final Life loading, final Reply reply) {
        loading.cancelLoadTimeout();
        if (reply.code() != 200) {
            LOGGER.error("{} did not load: {} {}", this, reply.code(), reply.message());
            loading.refusal = reply.message();
            setProblem(reply.message());
            firstLoad.complete(reply.code());
            // It ends by itself, once the whole traceback is printed.
            loading.process.killAfter(host, GRACE_MS);
            return;
        }
        loading.loaded = true;
        setProblem("");
        if (unhealthySinceMs != 0) {
            unhealthySinceMs = 0;
            StockLog.recovered();
        }
        backOff = -1;
        StockMetrics.workerLoaded(
                "W-" + address.port() + "-" + served.model().getModelVersionName()
                        .getVersionedModelName(),
                (System.nanoTime() - loading.startedNs) / 1e6);
        LOGGER.info("{} is ready, pid {}", this, pid());
        dispatcher.onReady(this);
        firstLoad.complete(200);
    }

    private void setProblem(final String cause) {
        problem = cause;
        served.setProblem(cause);
    }

    /** End the process because it does not answer in time; another is started. */
    public void timeOut(final String cause) {
        final Life now = life;
        if (now != null) {
            StockLog.workerError(cause);
            now.fail(Loss.timedOut(cause));
        }
    }

    /** A process or its connection is gone. */
    private void lost(final Life gone, final Loss loss) {
        final WorkerState before = state;
        if (gone != life
                || !gone.over.compareAndSet(false, true)
                || !dispatcher.onLost(this, loss)) {
            gone.release();
            return;
        }
        gone.release();
        if (state == WorkerState.STOPPED) {
            finish();
            return;
        }
        LOGGER.warn("{} was lost in state {}: {}", this, before, loss.cause());
        if (before == WorkerState.LOADING) {
            StockLog.loadFailed(served.model().getModelName(), loss.cause());
        }
        setProblem(loss.cause());
        firstLoad.complete(gone.ranOutOfMemory() ? Loss.INSUFFICIENT_STORAGE : 500);
        retry();
    }

    private void retry() {
        final boolean first = unhealthySinceMs == 0;
        if (first) {
            unhealthySinceMs = System.currentTimeMillis();
        }
        StockLog.recovery(first, unhealthySinceMs);
        if (!isHealthy()) {
            LOGGER.error("{} failed for too long and is given up", this);
            end();
            served.onGivenUp(this);
            return;
        }
        backOff = Math.min(backOff + 1, BACK_OFF_S.length - 1);
        restarts++;
        StockLog.retry(address.port(), BACK_OFF_S[backOff]);
        host.timer().schedule(this::restart, BACK_OFF_S[backOff], TimeUnit.SECONDS);
    }

    private void restart() {
        if (dispatcher.change(this, WorkerState.Event.RETRIED)) {
            host.execute(this::start);
        }
    }

    /** Within the time in which a failing worker is started again. */
    public boolean isHealthy() {
        final long since = unhealthySinceMs;
        return since == 0
                || System.currentTimeMillis() - since
                        < served.model().getMaxRetryTimeoutInMill();
    }

    /** Finish what it holds, then end. */
    public void drain() {
        if (dispatcher.drain(this)) {
            end();
        }
    }

    /** End for good; what it still holds runs elsewhere. */
    @Override
    public void end() {
        if (dispatcher.onEnd(this)) {
            final Life last = life;
            if (last != null) {
                last.release();
            }
            finish();
        }
    }

    private void finish() {
        firstLoad.complete(500);
        served.onEnded(this);
        final Life last = life;
        if (last == null) {
            gone();
        } else {
            last.gone.thenRun(this::gone);
        }
    }

    /** Not before: a process that is still starting would make its socket again. */
    private void gone() {
        try {
            address.clean();
        } catch (IOException e) {
            LOGGER.debug("Socket of {} was not removed", this, e);
        }
        ended.complete(null);
    }

    @Override
    public String toString() {
        return "worker " + address.port() + " of " + served.name();
    }
}
