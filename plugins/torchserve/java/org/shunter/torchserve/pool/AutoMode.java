package org.shunter.torchserve.pool;

import java.util.EnumSet;
import java.util.List;
import java.util.stream.Stream;
import org.pytorch.serve.http.BadRequestException;
import org.shunter.torchserve.forming.RequestClass;
import org.shunter.torchserve.settings.GroupConfig;
import org.shunter.torchserve.settings.ModelSettings;

/** Whether the controller may change the configuration of a model. */
public final class AutoMode {
    private final ServedModel served;
    private volatile boolean wanted;

    AutoMode(final ServedModel served) {
        this.served = served;
        this.wanted = served.settings().auto();
    }

    /** Whether it may while the model has these groups. */
    boolean isOn(final List<GroupConfig> groups) {
        return wanted && whyNot(groups) == null;
    }

    /** What users say, where nothing speaks against it. */
    public void set(final boolean value) {
        wanted = value;
        served.publishIdentity();
    }

    boolean isWanted() {
        return wanted;
    }

    /**
     * Check that the controller may change such worker groups.
     *
     * @throws BadRequestException naming what speaks against it
     */
    public void check(final List<GroupConfig> groups) {
        final String whyNot = whyNot(groups);
        if (whyNot != null) {
            throw new BadRequestException("auto: " + served.name() + " " + whyNot);
        }
    }

    /**
     * What speaks against it, or null: profiles know no GPU, and the optimum knows nothing of places
     * and classes.
     */
    private String whyNot(final List<GroupConfig> groups) {
        final ModelSettings settings = served.settings();
        if (settings.device() != null || served.model().getNumCores() > 0) {
            return "serves on a GPU";
        }
        if (settings.cores() != null && !settings.cores().equals(GroupConfig.AUTO)) {
            return "has cores of its own";
        }
        final boolean alike =
                Stream.concat(settings.configuration().stream(), groups.stream())
                        .allMatch(AutoMode::isForAllAnywhere);
        return alike ? null : "has groups with places or classes of their own";
    }

    private static boolean isForAllAnywhere(final GroupConfig group) {
        return group.device() == null
                && (group.cores() == null || group.cores().equals(GroupConfig.AUTO))
                && group.classes().equals(EnumSet.allOf(RequestClass.class));
    }
}
