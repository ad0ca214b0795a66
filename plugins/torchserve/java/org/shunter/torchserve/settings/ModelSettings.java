package org.shunter.torchserve.settings;

import static org.shunter.torchserve.settings.SettingValues.checkMap;
import static org.shunter.torchserve.settings.SettingValues.flag;
import static org.shunter.torchserve.settings.SettingValues.refusal;
import static org.shunter.torchserve.settings.SettingValues.requestClass;
import static org.shunter.torchserve.settings.SettingValues.text;

import java.io.File;
import java.io.IOException;
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
import org.shunter.torchserve.forming.RequestTerms;

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
 * @param drop whether a batch that stands still may give its memory back and begin anew
 * @param company whether free workers wait for a full batch as stock's do
 * @param pool whether its workers share processes with those of other models; null: it is not said
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
        boolean drop,
        boolean company,
        Boolean pool,
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
                            "pool",
                            "resident",
                            "retry",
                            "wait",
                            "weights"));
    /** Settings of a model without a section: strict, no deadline. */
    static final ModelSettings DEFAULT = of(Map.of());

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
                drop,
                company,
                pool,
                auto);
    }

    /**
     * As it is served: with a worker in each process that models share, if it shares them. A model
     * that says where it runs does so only when it asks for it.
     */
    public ModelSettings inPool(final PoolSettings pools, final int batchSize) {
        final boolean isPlaced = !configuration.isEmpty() || cores != null || device != null;
        if (pool == null && (!pools.all() || isPlaced)) {
            return this;
        }
        final int batch = Math.max(1, maxBatch > 0 ? maxBatch : batchSize);
        return new ModelSettings(
                defaultClass,
                sloNs,
                maxBatch,
                configuration.isEmpty()
                        ? List.of(GroupConfig.of(pools.workers(), pools.threads(), batch))
                        : configuration,
                cores,
                device,
                environment,
                network,
                preemptible,
                retry,
                drop,
                company,
                true,
                false);
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
        checkWeights(map.getOrDefault("weights", "private"));
        flag("shunter.resident", map.getOrDefault("resident", false)); // its workers read it
        final RequestClass defaultClass =
                map.containsKey("class")
                        ? requestClass("shunter.class", map.get("class"))
                        : RequestClass.STRICT;
        final boolean retry = flag("shunter.retry", map.getOrDefault("retry", true));
        final boolean drop = PreemptibleSettings.drops(map);
        if (!retry && drop) {
            throw new BadRequestException(
                    "shunter.retry: false is not possible together with shunter.preemptible.drop:"
                            + " true, by which a batch begins anew");
        }
        final List<GroupConfig> groups = GroupSettings.configuration(map);
        if (!groups.isEmpty() && groups.stream().noneMatch(g -> g.classes().contains(defaultClass))) {
            throw new BadRequestException(
                    "shunter.groups: none serves the model's default class " + defaultClass.label());
        }
        return new ModelSettings(
                defaultClass,
                sloNs(map.get("slo_ms")),
                maxBatch(map.get("max_batch")),
                groups,
                SettingValues.cores("shunter.cores", map.get("cores")),
                text("shunter.device", map.get("device")),
                environment(map.get("environment")),
                GroupSettings.network(map),
                PreemptibleSettings.ofModel(map, defaultClass),
                retry,
                drop,
                company(map.getOrDefault("wait", "adaptive")),
                PoolSettings.ofModel(map),
                auto(map));
    }

    /**
     * Whether the model can keep what a request asks for.
     *
     * @throws BadRequestException saying what it cannot
     */
    public void check(final RequestTerms terms) {
        if (drop && Boolean.FALSE.equals(terms.idempotent())) {
            throw new BadRequestException(
                    RequestTerms.IDEMPOTENT_KEY
                            + ": false is not possible for a model that says"
                            + " shunter.preemptible.drop: true, by which a batch begins anew");
        }
    }

    private static boolean auto(final Map<String, Object> map) {
        final Object value = map.get("auto");
        final Object cores = map.get("cores");
        final boolean placed = cores != null && !cores.equals(GroupConfig.AUTO);
        if (value == null) {
            return !placed
                    && !PoolSettings.SHARED.equals(map.get(PoolSettings.KEY))
                    && List.of("configuration", "groups", "device").stream()
                            .noneMatch(map::containsKey);
        }
        final boolean flag = flag("shunter.auto", value);
        if (flag && (placed || map.containsKey("device") || map.containsKey("groups"))) {
            throw new BadRequestException(
                    "shunter.auto: true is not possible together with cores, device or groups");
        }
        return flag;
    }

    private static boolean company(final Object value) {
        if (!"adaptive".equals(value) && !"company".equals(value)) {
            throw refusal("shunter.wait", value, "adaptive, company");
        }
        return "company".equals(value);
    }

    /** Its workers read it; a wrong value fails the registration and not their start. */
    private static void checkWeights(final Object value) {
        if (!"private".equals(value) && !"shared".equals(value)) {
            throw refusal("shunter.weights", value, "shared, private");
        }
    }

    private static long sloNs(final Object value) {
        if (value == null) {
            return 0;
        }
        final double ms = value instanceof Number number ? number.doubleValue() : Double.NaN;
        if (!(ms > 0) || ms > 86_400_000) {
            throw new BadRequestException(
                    "shunter.slo_ms: \"" + value + "\" is not a latency; allowed: milliseconds above 0"
                            + " and at most 86400000");
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
}
