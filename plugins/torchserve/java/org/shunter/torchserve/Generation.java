package org.shunter.torchserve;

import java.util.ArrayList;
import java.util.List;

/** One set of worker groups of a model; a new configuration is a new generation. */
final class Generation {
    final long id;
    final List<WorkerGroup> groups = new ArrayList<>();

    Generation(final long id, final List<GroupConfig> configuration) {
        this.id = id;
        for (int i = 0; i < configuration.size(); i++) {
            groups.add(new WorkerGroup(i, configuration.get(i)));
        }
    }

    List<GroupConfig> configuration() {
        final List<GroupConfig> configuration = new ArrayList<>();
        groups.forEach(group -> configuration.add(group.config()));
        return configuration;
    }

    /** Every worker that has not stopped. */
    List<Worker> workers() {
        final List<Worker> workers = new ArrayList<>();
        groups.forEach(group -> workers.addAll(group.workers));
        return workers;
    }

    /** Sum of the configured instances. */
    int instances() {
        int sum = 0;
        for (final WorkerGroup group : groups) {
            sum += group.config().instances();
        }
        return sum;
    }
}
