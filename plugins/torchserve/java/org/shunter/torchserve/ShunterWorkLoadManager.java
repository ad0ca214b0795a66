package org.shunter.torchserve;

import io.netty.channel.EventLoopGroup;
import java.net.HttpURLConnection;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;
import org.pytorch.serve.archive.model.Manifest;
import org.pytorch.serve.archive.model.ModelVersionNotFoundException;
import org.pytorch.serve.http.BadRequestException;
import org.pytorch.serve.snapshot.SnapshotManager;
import org.pytorch.serve.util.ConfigManager;
import org.pytorch.serve.wlm.Model;
import org.pytorch.serve.wlm.ModelManager;
import org.pytorch.serve.wlm.ModelVersionName;
import org.pytorch.serve.wlm.WorkLoadManager;
import org.pytorch.serve.wlm.WorkerThread;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Takes the place of TorchServe's work load manager. Models that Shunter serves get a {@link
 * ServedModel}; all others go to the stock class untouched.
 */
final class ShunterWorkLoadManager extends WorkLoadManager {
    private static final Logger LOGGER = LoggerFactory.getLogger(ShunterWorkLoadManager.class);
    private static final long TICK_MS = 100;

    private final Host host;
    private final SavedSettings saved;
    private final FrontEnd frontEnd;
    private final Runners runners;
    private final Map<ModelVersionName, ServedModel> served = new ConcurrentHashMap<>();
    /** Scaled to 0 or unregistered, and not finished yet. */
    private final Set<ServedModel> closing = ConcurrentHashMap.newKeySet();

    private final Map<Worker, WorkerView> views = new ConcurrentHashMap<>();
    private volatile boolean draining;
    private long lastTickNs = System.nanoTime();

    ShunterWorkLoadManager(final Host host, final SavedSettings saved) {
        super(host.config(), host.backendGroup());
        this.host = host;
        this.saved = saved;
        this.frontEnd = new FrontEnd(host);
        this.runners = new Runners(host.page());
        host.countWith(StockFields.port(this), StockFields.gpuCounter(this));
        host.timer().scheduleAtFixedRate(this::tick, TICK_MS, TICK_MS, TimeUnit.MILLISECONDS);
    }

    Host host() {
        return host;
    }

    /** The network front end, where it is wanted. */
    FrontEnd frontEnd() {
        return frontEnd;
    }

    /** What workers that stand still for strict work counted. */
    Runners runners() {
        return runners;
    }

    Collection<ServedModel> served() {
        return served.values();
    }

    boolean draining() {
        return draining;
    }

    /** Whether Shunter leaves a model to the stock classes. */
    static boolean isStock(final Model model, final ConfigManager config) {
        return model.isSequenceBatching()
                || model.isContinuousBatching()
                || model.isAsyncCommunication()
                || model.getParallelLevel() > 0
                || model.isUseJobTicket()
                || model.isWorkflowModel()
                || model.getRuntimeType() == Manifest.RuntimeType.LSP
                || config.isCPULauncherEnabled()
                || config.isDebug();
    }

    @Override
    public CompletableFuture<Integer> modelChanged(
            final Model model, final boolean isStartup, final boolean isCleanUp) {
        if (isStock(model, host.config())) {
            return super.modelChanged(model, isStartup, isCleanUp);
        }
        synchronized (model.getModelVersionName()) {
            final CompletableFuture<Integer> result;
            try {
                result = change(model, isStartup);
            } catch (BadRequestException e) {
                return undoRegistration(model, isStartup, e);
            }
            if (!isStartup && !isCleanUp) {
                SnapshotManager.getInstance().saveSnapshot();
            }
            return result;
        }
    }

    private CompletableFuture<Integer> change(final Model model, final boolean isStartup) {
        final ModelVersionName key = model.getModelVersionName();
        // A change-over that ended in this moment may have written the worker count of a model
        // that is being unregistered.
        final int min = isRegistered(model) ? Math.max(0, model.getMinWorkers()) : 0;
        ServedModel current = served.get(key);
        if (current != null && current.model() != model) {
            if (min == 0) {
                return CompletableFuture.completedFuture(HttpURLConnection.HTTP_OK);
            }
            close(key, current, current.fleet().scale(0, 0)); // left over of an earlier registration
            current = null;
        }
        if (current == null) {
            if (min == 0) {
                return CompletableFuture.completedFuture(HttpURLConnection.HTTP_OK);
            }
            current = create(model, isStartup);
        } else if (!isStartup) {
            current.fleet().setAuto(false);
        }
        final CompletableFuture<Integer> result =
                current.fleet().scale(min == 0 ? 0 : model.getMinWorkers(), model.getMaxWorkers());
        if (min == 0) {
            close(key, current, result);
        }
        return result;
    }

    private void close(
            final ModelVersionName key,
            final ServedModel model,
            final CompletableFuture<Integer> retired) {
        closing.add(model);
        served.remove(key, model);
        retired.thenRun(
                () -> {
                    closing.remove(model);
                    model.close();
                });
    }

    private static boolean isRegistered(final Model model) {
        try {
            return ModelManager.getInstance().getModel(model.getModelName(), model.getVersion())
                    == model;
        } catch (ModelVersionNotFoundException e) {
            return false;
        }
    }

    /** The models served and those that still finish. */
    private List<ServedModel> all() {
        final List<ServedModel> all = new ArrayList<>(served.values());
        all.addAll(closing);
        return all;
    }

    private ServedModel create(final Model model, final boolean isStartup) {
        final SavedSettings.OfModel before = isStartup ? saved.of(model) : null;
        ModelSettings settings = ModelSettings.of(model);
        final boolean again = StockFields.dataQueue(model) instanceof JobQueue;
        if (!settings.network().isEmpty() && !WorkerLaunch.isOurs(host, model)) {
            throw new BadRequestException(
                    "shunter.network: the model's Python has no package shunter (useVenv, or it is"
                            + " not installed), which feeds its workers");
        }
        if (before != null) {
            settings = settings.withConfiguration(before.groups(settings));
        }
        final int configured =
                settings.configuration().stream().mapToInt(GroupConfig::instances).sum();
        if (configured > 0 && !again) {
            model.setMinWorkers(configured);
            model.setMaxWorkers(Math.max(configured, model.getMaxWorkers()));
        }
        final ServedModel fresh = new ServedModel(host, model, settings);
        // At once: whatever fails from here on, unregistering gives its slot back.
        served.put(model.getModelVersionName(), fresh);
        if (before != null || again) {
            fresh.fleet().setAuto(!again && before.auto());
        }
        StockFields.setDataQueue(model, new JobQueue(fresh, StrictClaims.of(host, fresh)));
        if (draining) {
            fresh.dispatcher().refuse(Drain.REASON);
        }
        return fresh;
    }

    /** A wrong section in the archive: the model is taken out again and the caller is told why. */
    private static CompletableFuture<Integer> undoRegistration(
            final Model model, final boolean isStartup, final BadRequestException e) {
        LOGGER.error("Model {} is not served: {}", model.getModelVersionName(), e.getMessage());
        ModelManager.getInstance().unregisterModel(model.getModelName(), model.getVersion());
        if (isStartup) {
            return CompletableFuture.completedFuture(HttpURLConnection.HTTP_BAD_REQUEST);
        }
        throw e;
    }

    /** Heartbeat, group telemetry, and workers that do not answer. */
    private void tick() {
        try {
            final long now = System.nanoTime();
            host.page().heartbeat(now);
            host.hold().heartbeat(now);
            final Effects effects = new Effects();
            host.turns().obey(effects);
            effects.run();
            final SliceSet heldSlices = host.hold().held(now);
            final long passedNs = now - lastTickNs;
            lastTickNs = now;
            runners.observe(all());
            frontEnd.obey();
            for (final ServedModel model : all()) {
                model.publishGroups();
                model.publishDefaultVersion();
                model.obeyConfiguration();
                model.dispatcher().refresh();
                final long timeoutS = model.model().getResponseTimeout();
                final long timeoutNs = TimeUnit.SECONDS.toNanos(timeoutS);
                final List<Worker> workers = model.fleet().workers();
                model.dispatcher()
                        .excuse(workers, heldSlices, passedNs, host.hold().longestParkNs() + timeoutNs);
                final Worker overdue = model.dispatcher().overdue(workers, now - timeoutNs);
                if (overdue != null) {
                    overdue.timeOut("no answer within responseTimeout of " + timeoutS + " s");
                }
            }
            views.keySet().removeIf(worker -> worker.ended.isDone());
        } catch (RuntimeException e) {
            LOGGER.error("Housekeeping failed", e);
        }
    }

    /** Refuse new requests everywhere and wait until nothing waits and nothing runs. */
    void drain(final long timeoutMs) throws InterruptedException {
        draining = true;
        frontEnd.stop();
        all().forEach(model -> model.dispatcher().refuse(Drain.REASON));
        final long endNs = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(timeoutMs);
        await(
                endNs,
                () -> !frontEnd.isAlive() && all().stream().allMatch(m -> m.dispatcher().isIdle()));
        final List<Worker> fed = new ArrayList<>();
        all().forEach(model -> fed.addAll(model.fleet().network().workers()));
        all().forEach(model -> model.fleet().endAll(503, Drain.REASON));
        // A network front end that is not ours may still wait for what they do.
        await(endNs, () -> fed.stream().noneMatch(Worker::isAlive));
    }

    private static void await(final long endNs, final BooleanSupplier condition)
            throws InterruptedException {
        while (System.nanoTime() - endNs < 0 && !condition.getAsBoolean()) {
            Thread.sleep(2);
        }
    }

    private WorkerView view(final Worker worker, final Model model) {
        return views.computeIfAbsent(
                worker, w -> new WorkerView(w, host.config(), host.backendGroup(), model));
    }

    @Override
    public List<WorkerThread> getWorkers(final ModelVersionName name) {
        final ServedModel model = served.get(name);
        if (model == null) {
            return super.getWorkers(name);
        }
        // Those that HTTP requests go to; the others are in our own status.
        return model.fleet().current().workers().stream()
                .<WorkerThread>map(worker -> view(worker, model.model()))
                .toList();
    }

    @Override
    public Map<Integer, WorkerThread> getWorkers() {
        final Map<Integer, WorkerThread> all = new HashMap<>(super.getWorkers());
        for (final ServedModel model : served.values()) {
            model.fleet().workers().forEach(worker -> all.put(worker.pid(), view(worker, model.model())));
        }
        return all;
    }

    @Override
    public boolean hasNoWorker(final ModelVersionName name) {
        return !served.containsKey(name) && super.hasNoWorker(name); // our queue says why, too
    }

    @Override
    public int getNumRunningWorkers(final ModelVersionName name) {
        final ServedModel model = served.get(name);
        if (model == null) {
            return super.getNumRunningWorkers(name);
        }
        return (int)
                model.fleet().current().workers().stream()
                        .filter(w -> w.state != WorkerState.BACKOFF && w.state != WorkerState.STOPPED)
                        .count();
    }

    @Override
    public int getNumHealthyWorkers(final ModelVersionName name) {
        final ServedModel model = served.get(name);
        if (model == null) {
            return super.getNumHealthyWorkers(name);
        }
        final boolean complete = model.fleet().isComplete();
        final List<Worker> workers = model.fleet().current().workers();
        final int healthy = (int) workers.stream().filter(Worker::isHealthy).count();
        // TorchServe writes the count of a scale call before it calls us: /ping misses nobody yet.
        final boolean all = complete && healthy > 0 && healthy == workers.size();
        return all ? Math.max(healthy, model.model().getMinWorkers()) : healthy;
    }

    static EventLoopGroup backendGroup(final WorkLoadManager stock) {
        return (EventLoopGroup) StockFields.backendGroup(stock);
    }
}
