package org.shunter.torchserve.pool;

import static org.shunter.torchserve.page.ControlLayout.*;

import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.Set;
import org.pytorch.serve.archive.model.ModelVersionNotFoundException;
import org.pytorch.serve.wlm.Model;
import org.pytorch.serve.wlm.ModelManager;
import org.shunter.torchserve.forming.RequestClass;
import org.shunter.torchserve.page.ModelSlot;
import org.shunter.torchserve.queue.Telemetry;
import org.shunter.torchserve.queue.WorkerGroup;
import org.shunter.torchserve.queue.WorkerState;
import org.shunter.torchserve.worker.Worker;

/** Writes to a model's slot on the control page what the model is and how its groups stand. */
final class PublishedModel {

    private final String store;
    private final ServedModel served;
    private final Model model;
    private final ModelSlot slot;
    private volatile String defaultVersion = "";

    /** {@code store}: the folder of TorchServe's model store, or null. */
    PublishedModel(final String store, final ServedModel served) {
        this.store = store;
        this.served = served;
        this.model = served.model();
        this.slot = served.slot();
    }

    /** Bring the group words of the control page up to date. */
    void groups() {
        served.dispatcher().read(this::writeGroups);
    }

    private void writeGroups() {
        assert Thread.holdsLock(served.dispatcher());
        final Generation current = served.pool().current();
        int ready = 0;
        int busy = 0;
        final long now = System.nanoTime();
        for (final RequestClass c : RequestClass.all()) {
            slot.set(ModelSlot.of(S_ATTAINMENT, c), served.dispatcher().telemetry().window().told(c, now));
        }
        for (final WorkerGroup<Worker> group : current.groups) {
            for (final RequestClass c : RequestClass.all()) {
                slot.set(
                        ModelSlot.ofGroup(ModelSlot.of(S_GROUP_ATTAINMENT, c), group.index),
                        group.sloWindow.told(c, now));
            }
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

    /** Bring the identity words of the control page up to date. */
    void identity() {
        defaultVersion = registeredDefault();
        // The dispatcher's lock comes first: it is held too when the slot is given back.
        served.dispatcher().read(
                () -> {
                    served.pool().current().groups.forEach(group -> Telemetry.publishFit(slot, group));
                    slot.changeIdentity(this::writeIdentity);
                });
    }

    private void writeIdentity() {
        final Generation current = served.pool().current();
        slot.set(S_GENERATION, current.id);
        slot.set(S_REGISTERED_BATCH_SIZE, served.ceiling());
        slot.set(S_REGISTERED_MAX_WAIT_US, model.getMaxBatchDelay() * 1000L);
        slot.set(S_QUEUE_CAPACITY, served.dispatcher().capacity());
        slot.set(S_GROUP_COUNT, current.groups.size());
        slot.set(S_SLO_US, served.settings().sloNs() / 1000);
        slot.setText(S_MODEL_NAME, MODEL_NAME_BYTES, model.getModelName());
        slot.setText(S_MODEL_VERSION, MODEL_VERSION_BYTES, model.getVersion());
        slot.set(S_AUTO, served.pool().auto() ? 1 : 0);
        slot.setText(S_ARCHIVE, ARCHIVE_BYTES, archive());
        slot.setText(S_LAST_CHANGE, LAST_CHANGE_BYTES, served.pool().lastChange());
        slot.setText(S_DEFAULT_VERSION, DEFAULT_VERSION_BYTES, defaultVersion);
        slot.setText(S_PROBLEM, PROBLEM_BYTES, served.problem());
        slot.set(S_SLOT_STATE, 1);
        current.groups.forEach(this::publishGroup);
    }

    /** The version of this model for requests that name none; empty when it is not registered. */
    private String registeredDefault() {
        try {
            final Model found = ModelManager.getInstance().getModel(model.getModelName(), null);
            return found == null ? "" : found.getVersion();
        } catch (ModelVersionNotFoundException e) {
            return "";
        }
    }

    /** Say so on the control page when TorchServe has been given another default version. */
    void defaultVersion() {
        final String now = registeredDefault();
        if (!now.isEmpty() && !now.equals(defaultVersion)) {
            identity();
        }
    }

    private static long mask(final Set<RequestClass> classes) {
        return classes.stream().mapToLong(each -> 1L << each.ordinal()).sum();
    }

    private void publishGroup(final WorkerGroup<Worker> group) {
        assert Thread.holdsLock(served.dispatcher());
        slot.set(ModelSlot.ofGroup(S_GROUP_CAP, group.index), group.config().batch());
        slot.set(ModelSlot.ofGroup(S_GROUP_THREADS, group.index), group.config().threads());
        slot.set(ModelSlot.ofGroup(S_GROUP_INSTANCES, group.index), group.config().instances());
        for (int word = 0; word < SLICE_WORDS; word++) {
            slot.set(
                    ModelSlot.ofGroup(S_GROUP_SLICES, group.index) + 8 * word,
                    group.place.slices().word(word));
        }
        slot.set(ModelSlot.ofGroup(S_GROUP_YIELDS, group.index), group.place.yields() ? 1 : 0);
        slot.set(ModelSlot.ofGroup(S_GROUP_CLASSES, group.index), mask(group.config().classes()));
        slot.setText(
                ModelSlot.ofGroup(S_GROUP_DEVICE, group.index),
                GROUP_DEVICE_BYTES,
                served.deviceOf(group.config()));
    }

    /** Path of the file that the model was registered from; empty when it came from elsewhere. */
    private String archive() {
        final String url = model.getModelArchive().getUrl();
        if (store == null || url == null || url.contains("://")) {
            return "";
        }
        final String path = Path.of(store, url).toAbsolutePath().toString();
        return path.getBytes(StandardCharsets.UTF_8).length < ARCHIVE_BYTES ? path : "";
    }
}
