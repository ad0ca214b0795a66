package org.shunter.torchserve;

import java.io.IOException;
import java.util.Properties;
import org.pytorch.serve.servingsdk.snapshot.Snapshot;
import org.pytorch.serve.servingsdk.snapshot.SnapshotSerializer;
import org.pytorch.serve.snapshot.FSSnapshotSerializer;
import org.pytorch.serve.wlm.ModelManager;
import org.shunter.torchserve.server.ShunterWorkLoadManager;
import org.shunter.torchserve.stock.StockFields;

/**
 * The door through which this plugin enters TorchServe. Its own job, snapshots, is done by the
 * stock class.
 *
 * <p>TorchServe may construct it before there is a model manager, when it looks for the last
 * snapshot on a bare start. Then it answers that question and makes the factory construct it again
 * later.
 */
public final class ShunterSnapshotSerializer implements SnapshotSerializer {
    private final SnapshotSerializer stock = new FSSnapshotSerializer();

    /** Called by the service loader. */
    public ShunterSnapshotSerializer() {
        Installer.checkFirstSerializer();
        if (ModelManager.getInstance() != null) {
            Installer.install();
        }
    }

    @Override
    public Properties getLastSnapshot() {
        final Properties last = stock.getLastSnapshot();
        if (ModelManager.getInstance() == null) {
            StockFields.forgetSerializer();
        }
        return last;
    }

    @Override
    public Snapshot getSnapshot(final String json) throws IOException {
        final Snapshot snapshot = stock.getSnapshot(json);
        if (!Installer.isOff()) {
            Installer.saved().load(snapshot.getName());
        }
        return snapshot;
    }

    @Override
    public void saveSnapshot(final Snapshot snapshot, final Properties properties)
            throws IOException {
        stock.saveSnapshot(snapshot, properties);
        final ShunterWorkLoadManager manager = Installer.manager();
        if (manager != null) {
            Installer.saved().save(snapshot.getName(), manager.served());
        }
    }
}
