package org.shunter.torchserve.pool;

import java.net.HttpURLConnection;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.pytorch.serve.wlm.Model;
import org.shunter.torchserve.host.Host;
import org.shunter.torchserve.queue.WorkerGroup;
import org.shunter.torchserve.queue.WorkerState;
import org.shunter.torchserve.settings.GroupConfig;
import org.shunter.torchserve.worker.Worker;
import org.shunter.torchserve.worker.WorkerLaunch;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Starts and retires the workers of one model; how many, and when, is the {@link WorkerPool}'s. */
final class WorkerRoster {
    private static final Logger LOGGER = LoggerFactory.getLogger(WorkerRoster.class);

    private final Host host;
    private final ServedModel served;
    private final Model model;
    /** Numbers of its workers; one that is free is given again. */
    private final BitSet indices = new BitSet();
    /** They take no batch any more, but finish those that they have. */
    private final Set<Worker> retiring = ConcurrentHashMap.newKeySet();

    WorkerRoster(final Host host, final ServedModel served) {
        this.host = host;
        this.served = served;
        this.model = served.model();
    }

    /** Start a worker; it takes no batch before the dispatcher is told of it. */
    Worker start(final WorkerGroup<Worker> group) {
        final int index = takeIndex();
        final int pool = served.poolOf(index);
        final Worker worker =
                new Worker(host, served, group, host.nextAddress(), nextGpu(group, pool), pool);
        worker.ended.thenRun(
                () -> {
                    host.release(worker.address);
                    giveIndexBack(index);
                });
        final GroupConfig before = group.config();
        group.add(worker);
        try {
            host.execute(worker::start);
        } catch (RuntimeException | Error e) { // no thread to be had: it would start for ever
            group.remove(worker);
            group.setConfig(before);
            worker.end();
            throw e;
        }
        LOGGER.debug("{} started", worker);
        return worker;
    }

    private int takeIndex() {
        synchronized (indices) {
            final int index = indices.nextClearBit(0);
            indices.set(index);
            return index;
        }
    }

    private void giveIndexBack(final int index) {
        synchronized (indices) {
            indices.clear(index);
        }
    }

    /** A process of the pool has one GPU, for all its models. */
    private int nextGpu(final WorkerGroup<Worker> group, final int pool) {
        if (served.placed(group.config()).device() != null) {
            return 0;
        }
        final int count = model.getNumCores();
        if (count <= 0) {
            return -1;
        }
        if (model.isHasCfgDeviceIds()) {
            final int index =
                    pool >= 0
                            ? pool % count
                            : model.getGpuCounter().getAndAccumulate(1, (p, s) -> (p + s) % count);
            return model.getDeviceIds().get(index);
        }
        return pool >= 0 ? pool % count : host.nextGpu(count);
    }

    /** Take the youngest worker out of its group; it finishes its batches and ends. */
    Worker drainYoungest(final WorkerGroup<Worker> group) {
        final Worker worker = group.workers.get(group.workers.size() - 1);
        group.remove(worker);
        drain(worker);
        return worker;
    }

    /**
     * The worker finishes its batches and ends, however long they take; who does not answer any
     * more is found as among those that serve.
     */
    void drain(final Worker worker) {
        retiring.add(worker);
        worker.drain();
        if (worker.state == WorkerState.STOPPED) { // before it was added, if it was given up
            retiring.remove(worker);
        }
    }

    /**
     * Start the workers that a generation's groups have fewer than wanted; nothing else changes.
     *
     * @param added gets them: when one cannot be started, those before it are there
     */
    void fill(
            final Generation generation, final List<GroupConfig> wanted, final List<Worker> added) {
        for (final WorkerGroup<Worker> group : generation.groups) {
            final GroupConfig before = group.config();
            for (int i = group.workers.size(); i < wanted.get(group.index).instances(); i++) {
                added.add(start(group));
            }
            group.setConfig(before); // until they have loaded
        }
    }

    /** Take workers out again that were to fill up; what went wrong with them, if it is known. */
    String undo(final List<Worker> added) {
        final String why = problemOf(added);
        for (final Worker worker : added) {
            if (worker.group.remove(worker)) {
                drain(worker);
            }
        }
        return why.isEmpty() ? "" : ": " + why;
    }

    /** What went wrong last with one of these workers; empty when nobody knows. */
    static String problemOf(final List<Worker> workers) {
        String last = "";
        for (final Worker worker : workers) {
            last = worker.problem().isEmpty() ? last : worker.problem();
        }
        return last;
    }

    /** Drain those that are too many, and let the groups be what is wanted. */
    void settle(final Generation generation, final List<GroupConfig> wanted) {
        for (final WorkerGroup<Worker> group : generation.groups) {
            final GroupConfig config = wanted.get(group.index);
            for (int i = group.workers.size(); i > config.instances(); i--) {
                drainYoungest(group);
            }
            group.setConfig(config);
        }
    }

    /** These are about to be drained; until then, nobody shall miss them. */
    void retireSoon(final List<Worker> workers) {
        retiring.addAll(workers);
    }

    /** A worker has ended for good. */
    void onEnded(final Worker worker) {
        retiring.remove(worker);
    }

    /** A generation's workers and those that still drain. */
    List<Worker> with(final Generation current) {
        final Set<Worker> workers = new LinkedHashSet<>(current.workers());
        workers.addAll(retiring);
        return new ArrayList<>(workers);
    }

    /**
     * Who is there when a worker starts. After a crash it hurries; at first it is gentle, if it
     * comes with a change-over, or to a configuration that says its threads.
     */
    WorkerLaunch.Neighbours neighboursOf(final Worker starting, final Generation current) {
        final List<Integer> replaced = new ArrayList<>();
        boolean othersServe = false;
        final boolean isCurrent = current.groups.contains(starting.group);
        for (final Worker worker : with(current)) {
            othersServe |= worker != starting && worker.state == WorkerState.READY;
            if (worker.pid() > 0 && !(isCurrent && current.groups.contains(worker.group))) {
                replaced.add(worker.pid());
            }
        }
        final boolean ours = !isCurrent || starting.group.config().threads() > 0;
        return new WorkerLaunch.Neighbours(
                starting.group.isNetwork ? List.of() : replaced,
                othersServe && ours && starting.restarts == 0);
    }

    /**
     * The status of the first load that fails, or 200 when all have loaded. Never completed on the
     * thread that loads: what follows may wait for that very thread.
     */
    CompletableFuture<Integer> loaded(final List<Worker> started) {
        final CompletableFuture<Integer> result = new CompletableFuture<>();
        final AtomicInteger missing = new AtomicInteger(started.size());
        if (started.isEmpty()) {
            result.complete(200);
        }
        for (final Worker worker : started) {
            worker.firstLoad.thenAcceptAsync(
                    status -> {
                        if (status != 200) {
                            result.complete(status);
                        } else if (missing.decrementAndGet() == 0) {
                            result.complete(200);
                        }
                    },
                    host::execute)
                    .exceptionally( // no thread to be had: else nobody would ever hear of it
                            noThread -> {
                                result.complete(500);
                                return null;
                            });
        }
        return result;
    }

    /**
     * 200 when the processes of all these workers are gone, so that others find their memory; 408,
     * as in stock, when that takes longer than unregister_model_timeout.
     */
    CompletableFuture<Integer> gone(final List<Worker> leaving) {
        final CompletableFuture<?>[] ends =
                leaving.stream().map(worker -> worker.ended).toArray(CompletableFuture<?>[]::new);
        return CompletableFuture.allOf(ends)
                .thenApplyAsync(nothing -> HttpURLConnection.HTTP_OK, host::execute)
                .completeOnTimeout(
                        HttpURLConnection.HTTP_CLIENT_TIMEOUT,
                        host.config().getUnregisterModelTimeout(),
                        TimeUnit.SECONDS);
    }
}
