package org.shunter.torchserve.server;

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
import org.pytorch.serve.http.BadRequestException;
import org.pytorch.serve.http.InternalServerException;
import org.pytorch.serve.snapshot.SnapshotManager;
import org.pytorch.serve.wlm.Model;
import org.pytorch.serve.wlm.ModelManager;
import org.pytorch.serve.wlm.ModelVersionName;
import org.pytorch.serve.wlm.WorkLoadManager;
import org.pytorch.serve.wlm.WorkerThread;
import org.shunter.torchserve.events.Level;
import org.shunter.torchserve.host.FrontEnd;
import org.shunter.torchserve.host.Host;
import org.shunter.torchserve.pool.ServedModel;
import org.shunter.torchserve.pool.WorkerCounts;
import org.shunter.torchserve.preemption.Runners;
import org.shunter.torchserve.queue.WorkerState;
import org.shunter.torchserve.settings.GroupConfig;
import org.shunter.torchserve.settings.ModelSettings;
import org.shunter.torchserve.stock.StockFields;
import org.shunter.torchserve.stock.StockModels;
import org.shunter.torchserve.worker.Worker;
import org.shunter.torchserve.worker.WorkerLaunch;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Takes the place of TorchServe's work load manager. Models that Shunter serves get a {@link
 * ServedModel}; all others go to the stock class untouched.
 */
public final class ShunterWorkLoadManager extends WorkLoadManager {
    private static final Logger LOGGER = LoggerFactory.getLogger(ShunterWorkLoadManager.class);

    private final Host host;
    private final SavedSettings saved;
    private final FrontEnd frontEnd;
    private final Runners runners;
    private final Map<ModelVersionName, ServedModel> served = new ConcurrentHashMap<>();
    /** Scaled to 0 or unregistered, and not finished yet. */
    private final Set<ServedModel> closing = ConcurrentHashMap.newKeySet();

    private final Map<Worker, WorkerView> views = new ConcurrentHashMap<>();
    private volatile boolean draining;

    public ShunterWorkLoadManager(final Host host, final SavedSettings saved) {
        super(host.config(), host.backendGroup());
        this.host = host;
        this.saved = saved;
        this.frontEnd = new FrontEnd(host);
        this.runners = new Runners(host.page());
        host.countWith(StockFields.port(this), StockFields.gpuCounter(this));
        new Housekeeping(this).begin();
    }

    public Host host() {
        return host;
    }

    /** The network front end, where it is wanted. */
    public FrontEnd frontEnd() {
        return frontEnd;
    }

    /** What workers that stand still for strict work counted. */
    public Runners runners() {
        return runners;
    }

    public Collection<ServedModel> served() {
        return served.values();
    }

    public boolean draining() {
        return draining;
    }

    @Override
    public CompletableFuture<Integer> modelChanged(
            final Model model, final boolean isStartup, final boolean isCleanUp) {
        if (StockModels.isStock(model, host.config())) {
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
        final WorkerCounts asked = WorkerCounts.of(model);
        ServedModel current = served.get(key);
        if (asked.min() < 0) {
            refuse(model, asked, current);
        }
        final int min = StockModels.isRegistered(model) ? asked.min() : 0;
        if (current != null && current.model() != model) {
            if (min == 0) {
                return CompletableFuture.completedFuture(HttpURLConnection.HTTP_OK);
            }
            close(key, current, current.pool().scale(0, 0)); // left over of an earlier registration
            current = null;
        }
        if (current == null) {
            if (min == 0) {
                return CompletableFuture.completedFuture(HttpURLConnection.HTTP_OK);
            }
            return serve(model, isStartup, asked);
        }
        if (!isStartup) {
            current.pool().autoMode().set(false);
        }
        final CompletableFuture<Integer> result = current.pool().scale(min, asked.max());
        if (min == 0) {
            close(key, current, result);
        }
        return result;
    }

    /** Stock fails here too, but only after it has ended every worker. */
    private static void refuse(
            final Model model, final WorkerCounts asked, final ServedModel current) {
        final WorkerCounts before =
                current == null ? new WorkerCounts(0, 0) : current.pool().scaling().counts();
        before.writeTo(model);
        throw new InternalServerException("min_worker: " + asked.min() + " is less than 0");
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

    /** Forget what TorchServe saw of workers that are gone. */
    void forgetEnded() {
        views.keySet().removeIf(worker -> worker.ended.isDone());
    }

    /** The models served and those that still finish. */
    List<ServedModel> all() {
        final List<ServedModel> all = new ArrayList<>(served.values());
        all.addAll(closing);
        return all;
    }

    /** Serve a model that has had no workers. */
    private CompletableFuture<Integer> serve(
            final Model model, final boolean isStartup, final WorkerCounts asked) {
        final boolean again = StockFields.dataQueue(model) instanceof JobQueue;
        final SavedSettings.OfModel before = isStartup ? saved.of(model) : null;
        final ModelSettings own = served(model, ModelSettings.of(model));
        if (!own.network().isEmpty() && !WorkerLaunch.isOurs(host, model)) {
            throw new BadRequestException(
                    "shunter.network: the model's Python has no package shunter (useVenv, or it is"
                            + " not installed), which feeds its workers");
        }
        final ModelSettings settings =
                before == null ? own : own.withConfiguration(before.groups(own));
        final int configured = GroupConfig.instances(settings.configuration());
        WorkerCounts counts = asked;
        if (configured > 0 && !again) {
            counts = new WorkerCounts(configured, Math.max(configured, asked.max()));
            counts.writeTo(model);
        }
        final ServedModel fresh = new ServedModel(host, model, settings, JobQueue.capacity(model));
        // At once: whatever fails from here on, unregistering gives its slot back.
        served.put(model.getModelVersionName(), fresh);
        if (before != null || again) {
            fresh.pool().autoMode().set(!again && before.auto());
        }
        StockFields.setDataQueue(model, new JobQueue(fresh, StrictClaims.of(host, fresh)));
        if (draining) {
            fresh.dispatcher().refuse(Drain.REASON);
        }
        return fresh.pool().scale(counts.min(), counts.max());
    }

    private ModelSettings served(final Model model, final ModelSettings said) {
        return WorkerLaunch.isOurs(host, model) && !Boolean.FALSE.equals(said.pool())
                ? said.inPool(host.pools(), model.getBatchSize())
                : said;
    }

    /** A wrong section in the archive: the model is taken out again and the caller is told why. */
    private CompletableFuture<Integer> undoRegistration(
            final Model model, final boolean isStartup, final BadRequestException e) {
        LOGGER.error("Model {} is not served: {}", model.getModelVersionName(), e.getMessage());
        final String name = model.getModelName() + "/" + model.getVersion();
        host.events().tell(Level.ERROR, name, "it is not served: " + e.getMessage());
        ModelManager.getInstance().unregisterModel(model.getModelName(), model.getVersion());
        if (isStartup) {
            return CompletableFuture.completedFuture(HttpURLConnection.HTTP_BAD_REQUEST);
        }
        throw e;
    }

    /** From now on nothing new is taken anywhere. */
    void beginDrain() {
        draining = true;
        host.events().tell(Level.INFO, "server", Drain.REASON);
        frontEnd.stop();
        all().forEach(model -> model.dispatcher().refuse(Drain.REASON));
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
        return model.pool().current().workers().stream()
                .<WorkerThread>map(worker -> view(worker, model.model()))
                .toList();
    }

    @Override
    public Map<Integer, WorkerThread> getWorkers() {
        final Map<Integer, WorkerThread> all = new HashMap<>(super.getWorkers());
        for (final ServedModel model : served.values()) {
            model.pool().workers().forEach(worker -> all.put(worker.pid(), view(worker, model.model())));
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
                model.pool().current().workers().stream()
                        .filter(w -> w.state != WorkerState.BACKOFF && w.state != WorkerState.STOPPED)
                        .count();
    }

    /**
     * TorchServe compares it with the registered minimum as it has read that before. What a model
     * needs is another number while the controller chose its configuration, or a scale call is on
     * its way: more than any minimum, or fewer.
     */
    @Override
    public int getNumHealthyWorkers(final ModelVersionName name) {
        if (draining) {
            return -1; // who balances load shall look elsewhere at once
        }
        final ServedModel model = served.get(name);
        if (model == null) {
            return super.getNumHealthyWorkers(name);
        }
        return model.pool().scaling().isMet() ? Integer.MAX_VALUE : -1;
    }

    public static EventLoopGroup backendGroup(final WorkLoadManager stock) {
        return (EventLoopGroup) StockFields.backendGroup(stock);
    }
}
