package org.shunter.torchserve.view;

import java.util.ArrayList;
import java.util.List;
import org.shunter.torchserve.pool.ServedModel;

/** Names and values of the labels that all metrics of a model have. */
final class ModelLabels {
    static final List<String> MODEL = List.of("model", "version");
    static final List<String> BY_CLASS = List.of("model", "version", "class");

    private ModelLabels() {}

    /** The model's own, and more. */
    static List<String> labels(final ServedModel model, final String... more) {
        final List<String> labels =
                new ArrayList<>(List.of(model.model().getModelName(), model.model().getVersion()));
        labels.addAll(List.of(more));
        return labels;
    }
}
