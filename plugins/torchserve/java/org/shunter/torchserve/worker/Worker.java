package org.shunter.torchserve.worker;

import java.io.IOException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicBoolean;
import org.shunter.torchserve.dispatch.Dispatcher;
import org.shunter.torchserve.events.Level;
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
 * <p>Batches are written in the order in which they were put into its outbox under the
 * dispatcher's lock, on the connection's thread.
 */
public final class Worker extends BatchWorker {
    private static final Logger LOGGER = LoggerFactory.getLogger(Worker.class);
    /** A process may take so long until it listens; loading has the model's own time-out. */
    public static final long LISTEN_TIMEOUT_S = 120;

    public final WorkerAddress address;
    public final int gpuId;
    /** The process that it shares with workers of other models; -1: it has its own. */
    public final int pool;
    public final long createdMs = System.currentTimeMillis();
    /** Completed with an HTTP status when the first load succeeded or failed. */
    public final CompletableFuture<Integer> firstLoad = new CompletableFuture<>();

    /** Completed when the worker has ended for good and its process is gone. */
    public final CompletableFuture<Void> ended = new CompletableFuture<>();

    public volatile int restarts;

    private final Host host;
    private final WorkerModel served;
    private final Dispatcher dispatcher;
    private volatile WorkerLife life;
    private final Recovery recovery = new Recovery();
    private final AtomicBoolean finished = new AtomicBoolean();
    private volatile String problem = "";

    public Worker(
            final Host host,
            final WorkerModel served,
            final WorkerGroup<Worker> group,
            final WorkerAddress address,
            final int gpuId,
            final int pool) {
        super(group, host.rooms().of(pool));
        this.host = host;
        this.served = served;
        this.dispatcher = served.dispatcher();
        this.address = address;
        this.gpuId = gpuId;
        this.pool = pool;
    }

    public int pid() {
        final WorkerLife now = life;
        return now == null || now.process == null ? -1 : now.process.pid();
    }

    /** Whether it has a process, ended or not. */
    public boolean isAlive() {
        final WorkerLife now = life;
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
        final WorkerLife begun = new WorkerLife(host, served, this);
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
        final WorkerLife now = life;
        final WorkerConnection open = now.connection;
        if (open != null) { // else it died in the meantime and its batches were taken back
            open.execute(now::writeOutbox);
        }
    }

    /** Whether this is its process of now, and not an earlier one. */
    boolean isCurrent(final WorkerLife asked) {
        return asked == life;
    }

    void onLoadReply(final WorkerLife loading, final Reply reply) {
        loading.cancelLoadTimeout();
        if (reply.code() != 200) {
            LOGGER.error("{} did not load: {} {}", this, reply.code(), reply.message());
            loading.refusal = reply.message();
            setProblem(reply.message());
            firstLoad.complete(reply.code());
            // It ends by itself, once the whole traceback is printed.
            loading.process.killAfter(host, WorkerLife.GRACE_MS);
            return;
        }
        loading.loaded = true;
        setProblem("");
        if (recovery.worked()) {
            StockLog.recovered();
        }
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

    /** Its dispatcher gave it up because it does not answer: end the process, start another. */
    public void onTimedOut(final Loss loss) {
        final WorkerLife late = life;
        late.over.set(true);
        StockLog.workerError(loss.cause());
        late.process.kill();
        afterLoss(late, WorkerState.READY, loss);
    }

    /** A process or its connection is gone. */
    void lost(final WorkerLife gone, final Loss loss) {
        final WorkerState before = state;
        if (gone != life
                || !gone.over.compareAndSet(false, true)
                || !dispatcher.onLost(this, loss)) {
            gone.release();
            return;
        }
        afterLoss(gone, before, loss);
    }

    /** Its dispatcher has taken back what it held. */
    private void afterLoss(final WorkerLife gone, final WorkerState before, final Loss loss) {
        gone.release();
        if (state == WorkerState.STOPPED) {
            finish();
            return;
        }
        LOGGER.warn("{} was lost in state {}: {}", this, before, loss.cause());
        host.events().tell(Level.WARNING, served.name(), this + " was lost: " + loss.cause());
        if (before == WorkerState.LOADING) {
            StockLog.loadFailed(served.model().getModelName(), loss.cause());
        }
        setProblem(loss.cause());
        firstLoad.complete(gone.ranOutOfMemory() ? Loss.INSUFFICIENT_STORAGE : 500);
        retry();
    }

    private void retry() {
        StockLog.recovery(recovery.failed(System.nanoTime()), System.currentTimeMillis());
        if (!isHealthy()) {
            LOGGER.error("{} failed for too long and is given up", this);
            host.events().tell(Level.ERROR, served.name(), this + " is given up: " + problem);
            end();
            served.onGivenUp(this);
            return;
        }
        restarts++;
        StockLog.retry(address.port(), recovery.tryAgain(host.timer(), this::restart));
    }

    private void restart() {
        if (!dispatcher.change(this, WorkerState.Event.RETRIED)) {
            return;
        }
        try {
            host.execute(this::start);
        } catch (RuntimeException | Error e) { // no thread to be had: it would start for ever
            final Loss loss = Loss.died(500, e.toString());
            if (dispatcher.onLost(this, loss)) {
                afterLoss(life, WorkerState.STARTING, loss);
            }
        }
    }

    /** Within the time in which a failing worker is started again. */
    public boolean isHealthy() {
        return recovery.isWithin(served.model().getMaxRetryTimeoutInMill(), System.nanoTime());
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
            final WorkerLife last = life;
            if (last != null) {
                last.release();
            }
            finish();
        }
    }

    /** Once: its address may be another worker's by the time it is heard of again. */
    private void finish() {
        if (!finished.compareAndSet(false, true)) {
            return;
        }
        recovery.end();
        firstLoad.complete(500);
        served.onEnded(this);
        final WorkerLife last = life;
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
