package org.shunter.torchserve;

import static org.shunter.torchserve.ControlLayout.*;

import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.pytorch.serve.http.BadRequestException;
import org.pytorch.serve.wlm.Model;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * One model version that Shunter serves: its queue, its generations of workers, its slot.
 *
 * <p>Changes of the worker set run under this object's lock, one after another; nothing here waits
 * for a worker while holding it.
 */
final class ServedModel {
    private static final Logger LOGGER = LoggerFactory.getLogger(ServedModel.class);
    private static final long DRAIN_TIMEOUT_S = 120;

    private final Host host;
    private final Model model;
    private final ModelSettings settings;
    private final ModelSlot slot;
    private final Commands commands;
    private final Dispatcher dispatcher;
    private final Set<Worker> retiring = ConcurrentHashMap.newKeySet();
    private volatile Generation current;
    private volatile Generation next;
    private volatile boolean auto = true;
    private volatile String lastChange = "";
    private long generations = 1;

    ServedModel(final Host host, final Model model, final ModelSettings settings) {
        this.host = host;
        this.model = model;
        this.settings = settings;
        this.slot = host.page().claim();
        this.commands = new Commands(slot);
        this.dispatcher =
                new Dispatcher(
                        name(),
                        slot,
                        commands,
                        Math.max(1, model.getJobQueueRemainingCapacity()),
                        model.getMaxBatchDelay() * 1000L,
                        host);
        this.current = new Generation(generations, initialConfiguration(settings.configuration()));
        if (slot.index() < 0) {
            LOGGER.warn(
                    "{} models have a slot on the control page already; {} runs on built-in numbers",
                    SLOT_COUNT,
                    name());
        }
        publishIdentity(1);
    }

    private List<GroupConfig> initialConfiguration(final List<GroupConfig> wanted) {
        return wanted.isEmpty()
                ? List.of(GroupConfig.of(Math.max(1, model.getMinWorkers()), 0, ceiling()))
                : wanted;
    }

    /** {@code name/version}. */
    String name() {
        return model.getModelName() + "/" + model.getVersion();
    }

    Model model() {
        return model;
    }

    ModelSettings settings() {
        return settings;
    }

    Dispatcher dispatcher() {
        return dispatcher;
    }

    ModelSlot slot() {
        return slot;
    }

    Generation current() {
        return current;
    }

    /** The generation that is being started, or null. */
    Generation next() {
        return next;
    }

    /** Whether the controller may change the configuration. */
    boolean auto() {
        return auto;
    }

    /** The result of the last change, for people. */
    String lastChange() {
        return lastChange;
    }

    /** Largest batch of this model. */
    int ceiling() {
        return settings.maxBatch() > 0 ? settings.maxBatch() : Math.max(1, model.getBatchSize());
    }

    /** Largest batch of a group's workers now. */
    int cap(final WorkerGroup group) {
        final int commanded = commands.cap(group.index);
        final int own = group.config().batch();
        return Math.max(1, Math.min(ceiling(), commanded > 0 ? Math.min(commanded, own) : own));
    }

    /** A group's configuration with the model's placement where it has none of its own. */
    GroupConfig placed(final GroupConfig group) {
        return new GroupConfig(
                group.instances(),
                group.threads(),
                group.batch(),
                group.classes(),
                group.cores() == null ? settings.cores() : group.cores(),
                group.device() == null ? settings.device() : group.device());
    }

    /** Workers that management calls see: the current generation's and those that still drain. */
    List<Worker> workers() {
        final List<Worker> workers = current.workers();
        workers.addAll(retiring);
        return workers;
    }

    /** No worker can take a request, now or after a restart. */
    boolean hasNoWorker() {
        return current.workers().isEmpty();
    }

    /**
     * Stock scaling: at least {@code min} and at most {@code max} workers.
     *
     * @return completed with an HTTP status as in stock: at the first failed load, or when all new
     *     workers are loaded
     */
    synchronized CompletableFuture<Integer> scale(final int min, final int max) {
        if (min == 0) {
            return retire();
        }
        dispatcher.refuse(null);
        final int have = current.workers().size();
        final List<CompletableFuture<Integer>> loads = new ArrayList<>();
        for (int i = have; i < min; i++) {
            loads.add(addWorker(current, growing()).firstLoad);
        }
        for (int i = have; i > Math.max(min, max); i--) {
            removeWorker(shrinking());
        }
        dispatcher.setWorkers(current.workers());
        publishIdentity(current.groups.size());
        return firstFailure(loads);
    }

    /** An explicit scale call takes the configuration out of the controller's hands. */
    void setAuto(final boolean value) {
        auto = value;
    }

    private WorkerGroup growing() {
        for (final WorkerGroup group : current.groups) {
            if (group.workers.size() < group.config().instances()) {
                return group;
            }
        }
        return current.groups.get(current.groups.size() - 1);
    }

    private WorkerGroup shrinking() {
        for (int i = current.groups.size() - 1; i > 0; i--) {
            if (current.groups.get(i).workers.size() > 1) {
                return current.groups.get(i);
            }
        }
        for (int i = current.groups.size() - 1; i > 0; i--) {
            if (!current.groups.get(i).workers.isEmpty()) {
                return current.groups.get(i);
            }
        }
        return current.groups.get(0);
    }

    private Worker addWorker(final Generation generation, final WorkerGroup group) {
        final Worker worker = new Worker(host, this, group, host.nextAddress(), nextGpu(group));
        group.workers.add(worker);
        group.setInstances(Math.max(group.workers.size(), group.config().instances()));
        host.execute(worker::start);
        LOGGER.debug("{} added to generation {}", worker, generation.id);
        return worker;
    }

    private int nextGpu(final WorkerGroup group) {
        if (placed(group.config()).device() != null) {
            return 0;
        }
        final int count = model.getNumCores();
        if (count <= 0) {
            return -1;
        }
        if (model.isHasCfgDeviceIds()) {
            final int index = model.getGpuCounter().getAndAccumulate(1, (p, s) -> (p + s) % count);
            return model.getDeviceIds().get(index);
        }
        return host.nextGpu(count);
    }

    private void removeWorker(final WorkerGroup group) {
        final Worker worker = group.workers.get(group.workers.size() - 1);
        group.workers.remove(worker);
        group.setInstances(Math.max(1, group.workers.size()));
        drainAside(worker);
    }

    private void drainAside(final Worker worker) {
        retiring.add(worker);
        worker.drain();
        host.timer().schedule(worker::end, DRAIN_TIMEOUT_S, TimeUnit.SECONDS);
    }

    /** Serve what waits, take nothing new, end all workers. */
    private CompletableFuture<Integer> retire() {
        dispatcher.refuse("Model \"" + name() + "\" has no worker: it is being scaled to 0 or removed");
        next = null;
        final List<Worker> ending = workers();
        if (ending.stream().noneMatch(worker -> worker.state == WorkerState.READY)) {
            dispatcher.failWaiting(503, "Model \"" + name() + "\" was removed");
        }
        final CompletableFuture<Integer> done = new CompletableFuture<>();
        final long deadlineNs =
                System.nanoTime()
                        + TimeUnit.SECONDS.toNanos(host.config().getUnregisterModelTimeout());
        finishRetiring(ending, deadlineNs, done);
        return done;
    }

    private void finishRetiring(
            final List<Worker> ending, final long deadlineNs, final CompletableFuture<Integer> done) {
        if (!dispatcher.isIdle() && System.nanoTime() - deadlineNs < 0) {
            host.timer()
                    .schedule(
                            () -> finishRetiring(ending, deadlineNs, done),
                            5,
                            TimeUnit.MILLISECONDS);
            return;
        }
        dispatcher.failWaiting(503, "Model \"" + name() + "\" was removed");
        current.groups.forEach(group -> group.workers.clear());
        ending.forEach(Worker::end);
        dispatcher.setWorkers(List.of());
        dispatcher.failWaiting(503, "Model \"" + name() + "\" was removed");
        done.complete(200);
    }

    /** Forget this model's slot; it is not served any more. */
    void close() {
        dispatcher.detach(host.page());
    }

    /**
     * Change the configuration without anyone noticing: a new generation is started beside the old
     * one and takes over when all of it has loaded. On a failure the old one stays.
     *
     * @param restart start new processes even when only numbers changed
     * @return completed when the new generation serves, or exceptionally when the old one stays
     */
    synchronized CompletableFuture<Void> configure(
            final List<GroupConfig> wanted, final boolean restart) {
        if (next != null) {
            throw new BadRequestException("A change of " + name() + " is under way; try again later");
        }
        if (hasNoWorker()) {
            throw new BadRequestException(name() + " has no workers; scale it up first");
        }
        final Generation started = new Generation(++generations, wanted);
        next = started;
        lastChange = "starting generation " + started.id;
        LOGGER.info("{}: {} {}", name(), lastChange, GroupConfig.text(wanted));
        final CompletableFuture<Void> switched = new CompletableFuture<>();
        host.execute(() -> startGeneration(started, switched));
        return switched;
    }

    private void startGeneration(final Generation started, final CompletableFuture<Void> switched) {
        try {
            for (final WorkerGroup group : started.groups) {
                for (int i = 0; i < group.config().instances(); i++) {
                    // One after another: loading costs cores that the old generation serves with.
                    final Worker worker = addWorker(started, group);
                    final int status =
                            worker.firstLoad.get(
                                    model.getStartupTimeout() + 60L, TimeUnit.SECONDS);
                    if (status != 200) {
                        throw new IllegalStateException(worker + " did not load: status " + status);
                    }
                    if (next != started) {
                        throw new IllegalStateException("the model was removed meanwhile");
                    }
                }
            }
            switchTo(started);
            switched.complete(null);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            abort(started, switched, e);
        } catch (java.util.concurrent.ExecutionException
                | TimeoutException
                | RuntimeException e) {
            abort(started, switched, e);
        }
    }

    private synchronized void switchTo(final Generation started) {
        if (next != started) {
            throw new IllegalStateException("the model was removed meanwhile");
        }
        final Generation old = current;
        // Lower first: /ping compares the wanted with the running number at any time.
        model.setMinWorkers(Math.min(old.instances(), started.instances()));
        current = started;
        next = null;
        dispatcher.setWorkers(started.workers());
        model.setMinWorkers(started.instances());
        model.setMaxWorkers(started.instances());
        publishIdentity(started.groups.size());
        old.workers().forEach(this::drainAside);
        lastChange = "generation " + started.id + " serves";
        LOGGER.info("{}: {}", name(), lastChange);
    }

    private void abort(
            final Generation started, final CompletableFuture<Void> switched, final Exception e) {
        synchronized (this) {
            if (next == started) {
                next = null;
            }
        }
        started.workers().forEach(Worker::end);
        lastChange = "generation " + started.id + " was undone: " + e.getMessage();
        LOGGER.error("{}: {}; generation {} keeps serving", name(), lastChange, current.id);
        switched.completeExceptionally(e);
    }

    /** A worker has ended for good. */
    void onEnded(final Worker worker) {
        retiring.remove(worker);
    }

    /** A worker failed for longer than its recovery time and is not started again. */
    void onGivenUp(final Worker worker) {
        synchronized (this) {
            worker.group.workers.remove(worker);
            if (worker.group == groupOf(worker)) {
                dispatcher.setWorkers(current.workers());
            }
        }
        if (hasNoWorker()) {
            dispatcher.failWaiting(503, "Model \"" + name() + "\" has no worker left");
        }
    }

    private WorkerGroup groupOf(final Worker worker) {
        return current.groups.contains(worker.group) ? worker.group : null;
    }

    private static CompletableFuture<Integer> firstFailure(
            final List<CompletableFuture<Integer>> loads) {
        final CompletableFuture<Integer> result = new CompletableFuture<>();
        final java.util.concurrent.atomic.AtomicInteger missing =
                new java.util.concurrent.atomic.AtomicInteger(loads.size());
        if (loads.isEmpty()) {
            result.complete(200);
        }
        for (final CompletableFuture<Integer> load : loads) {
            load.thenAccept(
                    status -> {
                        if (status != 200) {
                            result.complete(status);
                        } else if (missing.decrementAndGet() == 0) {
                            result.complete(200);
                        }
                    });
        }
        return result;
    }

    /** Bring the group words of the control page up to date. */
    void publishGroups() {
        int ready = 0;
        int busy = 0;
        for (final WorkerGroup group : current.groups) {
            int groupReady = 0;
            int groupBusy = 0;
            for (final Worker worker : group.workers) {
                groupReady += worker.state == WorkerState.READY ? 1 : 0;
                groupBusy += worker.isBusy() ? 1 : 0;
            }
            slot.set(ModelSlot.ofGroup(S_GROUP_READY, group.index), groupReady);
            slot.set(ModelSlot.ofGroup(S_GROUP_BUSY, group.index), groupBusy);
            slot.set(ModelSlot.ofGroup(S_GROUP_BATCHES, group.index), group.batches);
            slot.set(ModelSlot.ofGroup(S_GROUP_REQUESTS, group.index), group.requests);
            ready += groupReady;
            busy += groupBusy;
        }
        slot.set(S_READY_WORKERS, ready);
        slot.set(S_BUSY_WORKERS, busy);
    }

    private void publishIdentity(final int groups) {
        slot.changeIdentity(
                () -> {
                    slot.set(S_GENERATION, current.id);
                    slot.set(S_REGISTERED_BATCH_SIZE, ceiling());
                    slot.set(S_REGISTERED_MAX_WAIT_US, model.getMaxBatchDelay() * 1000L);
                    slot.set(S_QUEUE_CAPACITY, dispatcher.capacity());
                    slot.set(S_GROUP_COUNT, groups);
                    slot.set(S_SLO_US, settings.sloNs() / 1000);
                    slot.setText(S_MODEL_NAME, 256, model.getModelName());
                    slot.setText(S_MODEL_VERSION, 128, model.getVersion());
                    slot.set(S_SLOT_STATE, 1);
                });
        for (final WorkerGroup group : current.groups) {
            slot.set(ModelSlot.ofGroup(S_GROUP_CAP, group.index), group.config().batch());
            slot.set(ModelSlot.ofGroup(S_GROUP_THREADS, group.index), group.config().threads());
        }
    }
}
