package org.shunter.torchserve.worker;

import org.pytorch.serve.wlm.Model;
import org.shunter.torchserve.dispatch.Dispatcher;
import org.shunter.torchserve.page.ModelSlot;
import org.shunter.torchserve.queue.WorkerGroup;
import org.shunter.torchserve.settings.GroupConfig;
import org.shunter.torchserve.settings.ModelSettings;

/** What a worker asks of the model that it serves, and what it tells it. */
public interface WorkerModel {
    /** {@code name/version}. */
    String name();

    Model model();

    ModelSettings settings();

    /** Its part of the control page. */
    ModelSlot slot();

    /** Who gives its workers their batches. */
    Dispatcher dispatcher();

    /** A group's configuration with the model's placement where it has none of its own. */
    GroupConfig placed(GroupConfig group);

    /** Largest batch that a group's workers are told of when they load. */
    int loadedFor(WorkerGroup<?> group);

    /** Largest batch of a group's workers now. */
    int cap(WorkerGroup<?> group);

    /** Which process its worker number {@code index} shares with other models; -1: none. */
    int poolOf(int index);

    /** Who is there when a worker starts. */
    WorkerLaunch.Neighbours neighboursOf(Worker starting);

    /** A worker loaded, or did not; empty when it did. */
    void setProblem(String cause);

    /** A worker has ended for good. */
    void onEnded(Worker worker);

    /** A worker failed for longer than its recovery time and is not started again. */
    void onGivenUp(Worker worker);
}
