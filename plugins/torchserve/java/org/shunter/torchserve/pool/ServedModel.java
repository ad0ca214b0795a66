package org.shunter.torchserve.pool;

import static org.shunter.torchserve.page.ControlLayout.*;

import java.util.EnumSet;
import java.util.List;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.pytorch.serve.wlm.Model;
import org.shunter.torchserve.dispatch.Dispatcher;
import org.shunter.torchserve.events.Level;
import org.shunter.torchserve.forming.RequestClass;
import org.shunter.torchserve.host.Host;
import org.shunter.torchserve.page.Commands;
import org.shunter.torchserve.page.ModelSlot;
import org.shunter.torchserve.page.SliceSet;
import org.shunter.torchserve.placement.Slices;
import org.shunter.torchserve.queue.WorkerGroup;
import org.shunter.torchserve.settings.GroupConfig;
import org.shunter.torchserve.settings.ModelSettings;
import org.shunter.torchserve.worker.Worker;
import org.shunter.torchserve.worker.WorkerLaunch;
import org.shunter.torchserve.worker.WorkerModel;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * One model version that Shunter serves: what it is, and where its queue, its workers and its slot
 * on the control page are.
 */
public final class ServedModel implements WorkerModel {
    private static final Logger LOGGER = LoggerFactory.getLogger(ServedModel.class);

    private static final int LARGEST_BATCH = 1 << 20;

    private final Host host;
    private final Model model;
    private final ModelSettings settings;
    private final ModelSlot slot;
    private final Commands commands;
    private final Dispatcher dispatcher;
    private final WorkerPool pool;
    private final WantedConfiguration wanted;
    private final PublishedModel published;
    private volatile String problem = "";

    /** {@code capacity}: requests that may wait. */
    public ServedModel(
            final Host host, final Model model, final ModelSettings settings, final int capacity) {
        this.host = host;
        this.model = model;
        this.settings = settings;
        this.slot = host.page().claim();
        try {
            this.commands = new Commands(slot);
            this.wanted = new WantedConfiguration(slot);
            this.dispatcher =
                    new Dispatcher(
                            name(),
                            slot,
                            commands,
                            new Dispatcher.Limits(
                                    capacity,
                                    model.getMaxBatchDelay() * 1000L,
                                    settings.sloNs(),
                                    settings.company()),
                            host.shared());
            this.published = new PublishedModel(host.config().getModelStore(), this);
            this.pool = new WorkerPool(host, this, initialConfiguration(settings.configuration()));
            warn();
            changed(Level.INFO, "it is served from now on");
        } catch (RuntimeException | Error e) { // nobody will ever close what was not made
            host.page().release(slot);
            throw e;
        }
    }

    /** What whoever registers it may not have meant. */
    private void warn() {
        if (slot.index() < 0) {
            LOGGER.warn(
                    "{} models have a slot on the control page already; {} runs on built-in numbers",
                    SLOT_COUNT,
                    name());
        }
        if (settings.defaultClass() == RequestClass.STRICT
                && pool.current().groups.stream().allMatch(group -> group.place.yields())) {
            LOGGER.warn(
                    "Requests for {} are strict by default, but all its workers give way: nobody gives"
                            + " way to them; set shunter.class to best_effort, or preemptible to false"
                            + " for some workers",
                    name());
        }
    }

    private List<GroupConfig> initialConfiguration(final List<GroupConfig> wanted) {
        return wanted.isEmpty()
                ? List.of(GroupConfig.of(Math.max(1, model.getMinWorkers()), 0, ceiling()))
                : wanted;
    }

    @Override
    public String name() {
        return model.getModelName() + "/" + model.getVersion();
    }

    @Override
    public Model model() {
        return model;
    }

    @Override
    public ModelSettings settings() {
        return settings;
    }

    @Override
    public Dispatcher dispatcher() {
        return dispatcher;
    }

    public WorkerPool pool() {
        return pool;
    }

    @Override
    public ModelSlot slot() {
        return slot;
    }

    /** Why a worker of it ended or did not load last; empty since one has loaded. */
    public String problem() {
        return problem;
    }

    /** What a client is told when all workers were given up. */
    public String whyNoWorker() {
        return "Model \"" + name() + "\" has no worker left" + (problem.isEmpty() ? "" : ": " + problem);
    }

    @Override
    public void setProblem(final String cause) {
        if (!cause.equals(problem)) {
            problem = cause;
            publishIdentity();
        }
    }

    /** Whether its workers share processes with those of other models. */
    public boolean isPooled() {
        return Boolean.TRUE.equals(settings.pool()) && WorkerLaunch.isOurs(host, model);
    }

    @Override
    public int poolOf(final int index) {
        // Models with one worker each are spread, too.
        return isPooled() ? (Math.max(0, slot.index()) + index) % host.pools().workers() : -1;
    }

    @Override
    public WorkerLaunch.Neighbours neighboursOf(final Worker starting) {
        return pool.neighboursOf(starting);
    }

    @Override
    public void onEnded(final Worker worker) {
        pool.onEnded(worker);
    }

    @Override
    public void onGivenUp(final Worker worker) {
        pool.onGivenUp(worker);
    }

    /** Largest batch of this model. */
    public int ceiling() {
        final int wanted = settings.maxBatch() > 0 ? settings.maxBatch() : model.getBatchSize();
        return Math.max(1, Math.min(wanted, LARGEST_BATCH));
    }

    @Override
    public int loadedFor(final WorkerGroup<?> group) {
        return group.isNetwork ? group.config().batch() : ceiling();
    }

    @Override
    public int cap(final WorkerGroup<?> group) {
        final int commanded = commands.cap(group.index);
        final int own = group.config().batch();
        return Math.max(1, Math.min(ceiling(), commanded > 0 ? Math.min(commanded, own) : own));
    }

    @Override
    public GroupConfig placed(final GroupConfig group) {
        return new GroupConfig(
                group.instances(),
                group.threads(),
                group.batch(),
                group.classes(),
                group.cores() == null ? settings.cores() : group.cores(),
                group.device() == null ? settings.device() : group.device(),
                yields(group));
    }

    /** Whether a group's workers stand still for strict work; those that are not ours cannot. */
    private boolean yields(final GroupConfig group) {
        final Boolean said =
                group.preemptible() == null ? settings.preemptible() : group.preemptible();
        return WorkerLaunch.isOurs(host, model)
                && (said == null
                        ? group.classes().equals(EnumSet.of(RequestClass.BEST_EFFORT))
                        : said);
    }

    /** Where the workers of a group run. */
    WorkerGroup.Place place(final GroupConfig group) {
        final String device = deviceOf(group);
        final GroupConfig placed = placed(group);
        return new WorkerGroup.Place(
                host.slices()
                        .of(
                                isPooled() ? host.pools().list() : placed.cores(),
                                device.isEmpty() ? null : device),
                placed.preemptible());
    }

    /** What CUDA_VISIBLE_DEVICES says to the workers of a group, empty where it is left alone. */
    public String deviceOf(final GroupConfig group) {
        final String given = placed(group).device();
        final String device = given == null ? stockDevices() : given;
        return device == null ? "" : device;
    }

    /** The slice that a group's workers run on, for people. */
    public String sliceOf(final WorkerGroup<?> group) {
        final String device = deviceOf(group.config());
        if (!device.isEmpty()) {
            return device;
        }
        final SliceSet slices = group.place.slices();
        return slices.cpus() == CPU_SLICES ? "all cores" : "cpus:" + slices.cpuList();
    }

    /** The GPUs that TorchServe assigns to workers of the model, or null. */
    private String stockDevices() {
        if (model.getNumCores() <= 0) {
            return null;
        }
        return IntStream.range(0, model.getNumCores())
                .map(i -> model.isHasCfgDeviceIds() ? model.getDeviceIds().get(i) : i)
                .mapToObj(i -> Slices.ofStock(i, System.getenv("CUDA_VISIBLE_DEVICES")))
                .collect(Collectors.joining(","));
    }

    /** Let the control page say what is true now, and do what the controller wants there. */
    public void keep() {
        published.groups();
        published.defaultVersion();
        if (pool.current().isSettled()) { // else who waits for workers to load would be told that they did not
            wanted.obey(pool, host::execute);
        }
        dispatcher.refresh();
    }

    /** Forget this model's slot; it is not served any more. */
    public void close() {
        host.events().tell(Level.INFO, name(), "it is served no more: unregistered, or scaled to 0");
        dispatcher.detach(host.page());
    }

    /** Something became of a change of its workers. */
    void changed(final Level level, final String text) {
        host.events().tell(level, name(), text + "; configuration "
                        + GroupConfig.text(pool.current().configuration()));
        publishIdentity();
    }

    /** Bring the identity words of the control page up to date. */
    void publishIdentity() {
        published.identity();
    }
}
