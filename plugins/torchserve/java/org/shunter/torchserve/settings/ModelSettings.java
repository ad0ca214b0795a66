package org.shunter.torchserve.settings;

import java.io.File;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Collection;
import java.util.EnumSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import org.pytorch.serve.archive.model.InvalidModelException;
import org.pytorch.serve.archive.utils.ArchiveUtils;
import org.pytorch.serve.http.BadRequestException;
import org.pytorch.serve.wlm.Model;
import org.shunter.torchserve.forming.RequestClass;
import org.shunter.torchserve.page.ControlLayout;

/**
 * The {@code shunter:} section of a model's {@code model-config.yaml}.
 *
 * @param defaultClass class of requests that state none
 * @param sloNs default deadline of strict requests, 0 for none
 * @param maxBatch ceiling of every batch when it is not the registered batch size, else 0
 * @param configuration worker groups, empty to follow the registered worker count
 * @param cores cpu list for all workers, or null
 * @param device CUDA_VISIBLE_DEVICES for all workers, or null
 * @param environment more environment variables of the workers
 * @param network worker groups that the network front end feeds, often none
 * @param preemptible whether the workers stand still for strict work; null: those of groups that
 *     take best-effort requests only
 * @param retry whether a request whose worker died is tried once more when it does not say
 * @param company whether free workers wait for a full batch as stock's do
 * @param auto whether the controller may change the configuration; when it is not said, yes unless
 *     the section says where or how the workers run
 */
public record ModelSettings(
        RequestClass defaultClass,
        long sloNs,
        int maxBatch,
        List<GroupConfig> configuration,
        String cores,
        String device,
        Map<String, String> environment,
        List<GroupConfig> network,
        Boolean preemptible,
        boolean retry,
        boolean company,
        boolean auto) {
    private static final String SECTION = "shunter";
    private static final Set<String> KEYS =
            new TreeSet<>(
                    List.of(
                            "class",
                            "slo_ms",
                            "max_batch",
                            "configuration",
                            "cores",
                            "device",
                            "environment",
                            "groups",
                            "auto",
                            "sample",
                            "tensors",
                            "preemptible",
                            "network",
                            "retry",
                            "wait"));
    private static final Set<String> GROUP_KEYS =
            new TreeSet<>(List.of("configuration", "classes", "cores", "device", "preemptible"));

    /** Settings of a model without a section: strict, no deadline. */
    static final ModelSettings DEFAULT =
            new ModelSettings(
                    RequestClass.STRICT,
                    0,
                    0,
                    List.of(),
                    null,
                    null,
                    Map.of(),
                    List.of(),
                    null,
                    true,
                    false,
                    true);

    /** The same settings with other worker groups. */
    public ModelSettings withConfiguration(final List<GroupConfig> groups) {
        return new ModelSettings(
                defaultClass,
                sloNs,
                maxBatch,
                groups,
                cores,
                device,
                environment,
                network,
                preemptible,
                retry,
                company,
                auto);
    }

    /**
     * Read the section of a registered model.
     *
     * @throws BadRequestException naming key, value and what is allowed
     */
    public static ModelSettings of(final Model model) {
        final String name = model.getModelArchive().getManifest().getModel().getConfigFile();
        if (name == null) {
            return DEFAULT;
        }
        final File file = new File(model.getModelDir(), name);
        try {
            final Map<String, Object> yaml = ArchiveUtils.readYamlFile(file);
            return yaml == null || !yaml.containsKey(SECTION) ? DEFAULT : of(yaml.get(SECTION));
        } catch (IOException | InvalidModelException e) {
            throw new BadRequestException(file.getName() + " of " + model.getModelName() + ": " + e);
        }
    }

    /** Settings in a parsed section. */
    public static ModelSettings of(final Object section) {
        final Map<String, Object> map = checkMap(SECTION, section, KEYS);
        if (map.containsKey("groups") && map.containsKey("configuration")) {
            throw new BadRequestException(
                    "shunter.groups and shunter.configuration: give one of them");
        }
        final RequestClass defaultClass =
                map.containsKey("class")
                        ? requestClass("shunter.class", map.get("class"))
                        : RequestClass.STRICT;
        final List<GroupConfig> groups = configuration(map);
        if (!groups.isEmpty() && groups.stream().noneMatch(g -> g.classes().contains(defaultClass))) {
            throw new BadRequestException(
                    "shunter.groups: none serves the model's default class " + defaultClass.label());
        }
        return new ModelSettings(
                defaultClass,
                sloNs(map.get("slo_ms")),
                maxBatch(map.get("max_batch")),
                groups,
                cores("shunter.cores", map.get("cores")),
                text("shunter.device", map.get("device")),
                environment(map.get("environment")),
                network(map),
                PreemptibleSettings.ofModel(map, defaultClass),
                retry(map.getOrDefault("retry", true)),
                company(map.getOrDefault("wait", "adaptive")),
                auto(map));
    }

    static Map<String, Object> checkMap(
            final String key, final Object value, final Set<String> allowed) {
        if (!(value instanceof Map<?, ?> map)) {
            throw new BadRequestException(key + ": \"" + value + "\" is not a mapping");
        }
        final Map<String, Object> checked = new LinkedHashMap<>();
        map.forEach(
                (k, v) -> {
                    if (allowed != null && !allowed.contains(String.valueOf(k))) {
                        throw new BadRequestException(
                                key + "." + k + " is not known; allowed: " + String.join(", ", allowed));
                    }
                    checked.put(String.valueOf(k), v);
                });
        return checked;
    }

    private static RequestClass requestClass(final String key, final Object value) {
        final RequestClass requestClass = RequestClass.of(String.valueOf(value));
        if (requestClass == null) {
            throw new BadRequestException(
                    key + ": \"" + value + "\" is not a class; allowed: strict, best_effort");
        }
        return requestClass;
    }

    private static boolean auto(final Map<String, Object> map) {
        final Object value = map.get("auto");
        final Object cores = map.get("cores");
        final boolean placed = cores != null && !cores.equals(GroupConfig.AUTO);
        if (value == null) {
            return !placed
                    && List.of("configuration", "groups", "device").stream()
                            .noneMatch(map::containsKey);
        }
        if (!(value instanceof Boolean flag)) {
            throw new BadRequestException("shunter.auto: \"" + value + "\"; allowed: true, false");
        }
        if (flag && (placed || map.containsKey("device") || map.containsKey("groups"))) {
            throw new BadRequestException(
                    "shunter.auto: true is not possible together with cores, device or groups");
        }
        return flag;
    }

    private static boolean retry(final Object value) {
        if (!(value instanceof Boolean flag)) {
            throw new BadRequestException("shunter.retry: \"" + value + "\"; allowed: true, false");
        }
        return flag;
    }

    private static boolean company(final Object value) {
        if (!"adaptive".equals(value) && !"company".equals(value)) {
            throw new BadRequestException(
                    "shunter.wait: \"" + value + "\"; allowed: adaptive, company");
        }
        return "company".equals(value);
    }

    private static long sloNs(final Object value) {
        if (value == null) {
            return 0;
        }
        final double ms = value instanceof Number number ? number.doubleValue() : Double.NaN;
        if (!(ms > 0) || ms > 86_400_000) {
            throw new BadRequestException(
                    "shunter.slo_ms: \""
                            + value
                            + "\" is not a latency; allowed: milliseconds above 0 and at most 86400000");
        }
        return (long) (ms * 1e6);
    }

    private static int maxBatch(final Object value) {
        if (value == null) {
            return 0;
        }
        if (!(value instanceof Integer size) || size < 1 || size > 100_000) {
            throw new BadRequestException(
                    "shunter.max_batch: \"" + value + "\" is not a batch size; allowed: 1 to 100000");
        }
        return size;
    }

    private static String text(final String key, final Object value) {
        if (value instanceof Map || value instanceof Collection) {
            throw new BadRequestException(key + ": \"" + value + "\" is not a text");
        }
        return value == null ? null : String.valueOf(value);
    }

    private static String cores(final String key, final Object value) {
        return value == null ? null : GroupConfig.checkCores(key, text(key, value));
    }

    private static Map<String, String> environment(final Object value) {
        if (value == null) {
            return Map.of();
        }
        final Map<String, String> variables = new LinkedHashMap<>();
        checkMap("shunter.environment", value, null)
                .forEach((k, v) -> variables.put(k, text("shunter.environment." + k, v)));
        variables.forEach(
                (k, v) -> {
                    if (v == null || k.isEmpty() || k.contains("=")) {
                        throw new BadRequestException(
                                "shunter.environment." + k + ": a variable needs a name and a value");
                    }
                });
        return variables;
    }

    private static List<GroupConfig> configuration(final Map<String, Object> section) {
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
        if (groups.size() > ControlLayout.GROUP_COUNT) {
            throw new BadRequestException(
                    "shunter.groups: "
                            + groups.size()
                            + " groups, at most "
                            + ControlLayout.GROUP_COUNT);
        }
        return groups;
    }

    private static List<GroupConfig> network(final Map<String, Object> section) {
        if (section.containsKey("tensors")) {
            TensorSettings.check("shunter.tensors", section.get("tensors"));
        }
        if (!section.containsKey("network")) {
            return List.of();
        }
        if (!section.containsKey("tensors")) {
            throw new BadRequestException(
                    "shunter.network: \""
                            + section.get("network")
                            + "\" needs shunter.tensors, which says what is sent");
        }
        final List<GroupConfig> groups =
                GroupConfig.parse("shunter.network", text("shunter.network", section.get("network")));
        final int workers = groups.stream().mapToInt(GroupConfig::instances).sum();
        final int batch = groups.stream().mapToInt(GroupConfig::batch).max().orElse(0);
        if (workers > ControlLayout.WORKER_COUNT || batch > ControlLayout.MAX_ENTRIES) {
            throw new BadRequestException(
                    "shunter.network: \""
                            + GroupConfig.text(groups)
                            + "\"; allowed: at most "
                            + ControlLayout.WORKER_COUNT
                            + " workers with batches of at most "
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
