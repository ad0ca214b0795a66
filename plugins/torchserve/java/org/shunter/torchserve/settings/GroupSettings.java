package org.shunter.torchserve.settings;

import static org.shunter.torchserve.settings.SettingValues.checkMap;
import static org.shunter.torchserve.settings.SettingValues.cores;
import static org.shunter.torchserve.settings.SettingValues.requestClass;
import static org.shunter.torchserve.settings.SettingValues.text;

import java.util.ArrayList;
import java.util.EnumSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import org.pytorch.serve.http.BadRequestException;
import org.shunter.torchserve.forming.RequestClass;
import org.shunter.torchserve.page.ControlLayout;

/** The worker groups in a model's {@code shunter:} section, those of the network front end too. */
final class GroupSettings {
    private static final Set<String> GROUP_KEYS =
            new TreeSet<>(List.of("configuration", "classes", "cores", "device", "preemptible"));

    private GroupSettings() {}

    /** What {@code configuration} or {@code groups} says; empty where there is neither. */
    static List<GroupConfig> configuration(final Map<String, Object> section) {
        if (section.containsKey("configuration")) {
            return GroupConfig.parse(
                    "shunter.configuration", text("shunter.configuration", section.get("configuration")));
        }
        final List<GroupConfig> groups = new ArrayList<>();
        if (section.get("groups") instanceof List<?> list) {
            for (int i = 0; i < list.size(); i++) {
                groups.add(group("shunter.groups[" + i + "]", list.get(i)));
            }
        } else if (section.get("groups") != null) {
            throw new BadRequestException("shunter.groups: not a list");
        }
        return GroupConfig.checkCount("shunter.groups", groups);
    }

    /** What {@code network} says, which needs {@code tensors}. */
    static List<GroupConfig> network(final Map<String, Object> section) {
        if (section.containsKey("tensors")) {
            TensorSettings.check("shunter.tensors", section.get("tensors"));
        }
        if (!section.containsKey("network")) {
            return List.of();
        }
        if (!section.containsKey("tensors") || TensorSettings.isOfBodies(section.get("tensors"))) {
            throw new BadRequestException(
                    "shunter.network: \""
                            + section.get("network")
                            + "\" needs shunter.tensors, which says what is sent");
        }
        final List<GroupConfig> groups =
                GroupConfig.parse("shunter.network", text("shunter.network", section.get("network")));
        final int workers = GroupConfig.instances(groups);
        final int batch = groups.stream().mapToInt(GroupConfig::batch).max().orElse(0);
        if (workers > ControlLayout.WORKER_COUNT || batch > ControlLayout.MAX_ENTRIES) {
            throw SettingValues.refusal(
                    "shunter.network",
                    GroupConfig.text(groups),
                    "at most " + ControlLayout.WORKER_COUNT + " workers with batches of at most "
                            + ControlLayout.MAX_ENTRIES);
        }
        return groups;
    }

    private static GroupConfig group(final String key, final Object value) {
        final Map<String, Object> map = checkMap(key, value, GROUP_KEYS);
        final List<GroupConfig> parsed =
                GroupConfig.parse(
                        key + ".configuration", text(key, map.getOrDefault("configuration", "")));
        if (parsed.size() != 1) {
            throw new BadRequestException(key + ".configuration: one group, example: 1x4x16");
        }
        final EnumSet<RequestClass> classes = EnumSet.noneOf(RequestClass.class);
        if (map.get("classes") instanceof List<?> list && !list.isEmpty()) {
            list.forEach(c -> classes.add(requestClass(key + ".classes", c)));
        } else if (map.containsKey("classes")) {
            throw new BadRequestException(key + ".classes: a list of strict, best_effort");
        }
        final GroupConfig triple = parsed.get(0);
        return new GroupConfig(
                triple.instances(),
                triple.threads(),
                triple.batch(),
                classes.isEmpty() ? EnumSet.allOf(RequestClass.class) : classes,
                cores(key + ".cores", map.get("cores")),
                text(key + ".device", map.get("device")),
                PreemptibleSettings.ofGroup(key + ".preemptible", map.get("preemptible")));
    }
}
