package org.shunter.torchserve.pool;

import java.util.ArrayList;
import java.util.List;
import java.util.function.Function;
import org.shunter.torchserve.queue.WorkerGroup;
import org.shunter.torchserve.settings.GroupConfig;
import org.shunter.torchserve.worker.Worker;

/** One set of worker groups of a model; a new configuration is a new generation. */
public final class Generation {
    public final long id;
    public final List<WorkerGroup<Worker>> groups = new ArrayList<>();
    /** The controller chose where its groups are, and may choose again; its pool's lock guards it. */
    boolean placedByController;

    /** {@code place} says where the workers of a group run. */
    Generation(
            final long id,
            final List<GroupConfig> configuration,
            final Function<GroupConfig, WorkerGroup.Place> place) {
        this(id, configuration, place, false);
    }

    private Generation(
            final long id,
            final List<GroupConfig> configuration,
            final Function<GroupConfig, WorkerGroup.Place> place,
            final boolean isNetwork) {
        this.id = id;
        for (int i = 0; i < configuration.size(); i++) {
            final GroupConfig config = configuration.get(i);
            groups.add(new WorkerGroup<Worker>(i, config, place.apply(config), isNetwork));
        }
    }

    /** The groups that the network front end feeds; no other generation follows them. */
    static Generation ofNetwork(
            final List<GroupConfig> configuration,
            final Function<GroupConfig, WorkerGroup.Place> place) {
        return new Generation(1, configuration, place, true);
    }

    public List<GroupConfig> configuration() {
        final List<GroupConfig> configuration = new ArrayList<>();
        groups.forEach(group -> configuration.add(group.config()));
        return configuration;
    }

    /** Every worker that has not stopped. */
    public List<Worker> workers() {
        final List<Worker> workers = new ArrayList<>();
        groups.forEach(group -> workers.addAll(group.workers));
        return workers;
    }

    /** Whether it is known of each worker whether it loads. */
    boolean isSettled() {
        return workers().stream().allMatch(worker -> worker.firstLoad.isDone());
    }

    /** Why a worker is not there, in a line; empty when none is missing or nobody knows. */
    public String problem() {
        return WorkerRoster.problemOf(workers());
    }

    /** End all its workers; they answer what they were given. Returns who they were. */
    List<Worker> end() {
        final List<Worker> ending = workers();
        groups.forEach(group -> group.workers.clear());
        ending.forEach(Worker::end);
        return ending;
    }

    /** Sum of the configured instances. */
    int instances() {
        return GroupConfig.instances(configuration());
    }

    /** How many workers its groups have fewer than wanted. */
    int missing(final List<GroupConfig> wanted) {
        int missing = 0;
        for (final WorkerGroup<Worker> group : groups) {
            final int instances = wanted.get(group.index).instances();
            missing += Math.max(0, instances - group.workers.size());
        }
        return missing;
    }

    /** The group that gets the next worker: the first with fewer than it should have. */
    WorkerGroup<Worker> growing() {
        for (final WorkerGroup<Worker> group : groups) {
            if (group.workers.size() < group.config().instances()) {
                return group;
            }
        }
        return groups.get(groups.size() - 1);
    }

    /** The group that gives a worker away: the last that keeps one, or else has one. */
    WorkerGroup<Worker> shrinking() {
        for (int atLeast = 2; atLeast > 0; atLeast--) {
            for (int i = groups.size() - 1; i >= 0; i--) {
                if (groups.get(i).workers.size() >= atLeast) {
                    return groups.get(i);
                }
            }
        }
        return groups.get(0);
    }
}
