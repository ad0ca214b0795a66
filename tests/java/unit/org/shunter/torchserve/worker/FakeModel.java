package org.shunter.torchserve.worker;

import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import org.pytorch.serve.wlm.Model;
import org.shunter.torchserve.dispatch.Dispatcher;
import org.shunter.torchserve.host.TestHost;
import org.shunter.torchserve.host.WorkerAddress;
import org.shunter.torchserve.page.Commands;
import org.shunter.torchserve.page.ModelSlot;
import org.shunter.torchserve.page.SliceSet;
import org.shunter.torchserve.queue.WorkerGroup;
import org.shunter.torchserve.settings.GroupConfig;
import org.shunter.torchserve.settings.ModelSettings;

/** A model whose workers a test makes by hand. */
class FakeModel implements WorkerModel {
    final AtomicInteger endings = new AtomicInteger();
    private final TestHost test;
    private final Model model;
    private final ModelSlot slot;
    private final Dispatcher dispatcher;

    FakeModel(final TestHost test) {
        this.test = test;
        model = test.model();
        slot = test.host.page().claim();
        dispatcher =
                new Dispatcher(
                        name(),
                        slot,
                        new Commands(slot),
                        new Dispatcher.Limits(100, 0, 0, false),
                        test.host.shared());
    }

    /** A worker that was not started yet. */
    Worker worker() {
        final WorkerGroup<Worker> group =
                new WorkerGroup<>(
                        0,
                        GroupConfig.of(1, 0, 8),
                        new WorkerGroup.Place(SliceSet.of(1), false),
                        false);
        final String socket = test.folder().resolve("socket").toString();
        return new Worker(test.host, this, group, new WorkerAddress(9000, socket), -1, -1);
    }

    @Override
    public String name() {
        return "m/1.0";
    }

    @Override
    public Model model() {
        return model;
    }

    @Override
    public ModelSettings settings() {
        return ModelSettings.of(java.util.Map.of());
    }

    @Override
    public ModelSlot slot() {
        return slot;
    }

    @Override
    public Dispatcher dispatcher() {
        return dispatcher;
    }

    @Override
    public GroupConfig placed(final GroupConfig group) {
        return group;
    }

    @Override
    public int loadedFor(final WorkerGroup<?> group) {
        return 8;
    }

    @Override
    public int cap(final WorkerGroup<?> group) {
        return 8;
    }

    @Override
    public int poolOf(final int index) {
        return -1;
    }

    @Override
    public WorkerLaunch.Neighbours neighboursOf(final Worker starting) {
        return new WorkerLaunch.Neighbours(List.of(), false);
    }

    @Override
    public void setProblem(final String cause) {}

    @Override
    public void onEnded(final Worker worker) {
        endings.incrementAndGet();
    }

    @Override
    public void onGivenUp(final Worker worker) {}
}
