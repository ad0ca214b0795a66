package org.shunter.torchserve.stock;

import org.pytorch.serve.archive.model.Manifest;
import org.pytorch.serve.archive.model.ModelVersionNotFoundException;
import org.pytorch.serve.util.ConfigManager;
import org.pytorch.serve.wlm.Model;
import org.pytorch.serve.wlm.ModelManager;

/** What TorchServe says of its models. */
public final class StockModels {
    private StockModels() {}

    /** Whether Shunter leaves a model to the stock classes. */
    public static boolean isStock(final Model model, final ConfigManager config) {
        return model.isSequenceBatching()
                || model.isContinuousBatching()
                || model.isAsyncCommunication()
                || model.getParallelLevel() > 0
                || model.isUseJobTicket()
                || model.isWorkflowModel()
                || model.getRuntimeType() == Manifest.RuntimeType.LSP
                || config.isCPULauncherEnabled()
                || config.isDebug();
    }

    /** Whether this very model is registered under its name and version. */
    public static boolean isRegistered(final Model model) {
        try {
            return ModelManager.getInstance().getModel(model.getModelName(), model.getVersion())
                    == model;
        } catch (ModelVersionNotFoundException e) {
            return false;
        }
    }
}
