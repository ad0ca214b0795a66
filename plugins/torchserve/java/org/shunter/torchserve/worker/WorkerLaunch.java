package org.shunter.torchserve.worker;

import java.io.File;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.pytorch.serve.util.ConfigManager;
import org.pytorch.serve.util.messages.EnvironmentUtils;
import org.pytorch.serve.wlm.Model;
import org.shunter.torchserve.host.Host;
import org.shunter.torchserve.host.WorkerAddress;
import org.shunter.torchserve.page.SliceSet;
import org.shunter.torchserve.placement.Slices;
import org.shunter.torchserve.queue.WorkerGroup;
import org.shunter.torchserve.settings.GroupConfig;
import org.shunter.torchserve.settings.PoolSettings;

/**
 * How a worker process is started: command, environment, folder.
 *
 * @param name prefix of its threads and log lines
 * @param command the command line
 * @param environment the whole environment
 * @param folder working directory
 */
public record WorkerLaunch(
        String name, List<String> command, Map<String, String> environment, File folder) {

    private static final String DEVICES = "CUDA_VISIBLE_DEVICES";

    /** Where the network front end listens for its workers; {@code batching/queue/attach.py}. */
    private static final String NETWORK = "nic.sock";

    /**
     * Who is there when a worker starts.
     *
     * @param replaced pids of the workers of an older generation, whose cores it may share
     * @param othersServe whether requests are served meanwhile, so that it must not disturb
     */
    public record Neighbours(List<Integer> replaced, boolean othersServe) {}

    /** The launch of a worker of a group with a socket. */
    static WorkerLaunch of(
            final Host host,
            final WorkerModel served,
            final WorkerGroup<?> workers,
            final WorkerAddress address,
            final int gpuId,
            final int pool,
            final Neighbours neighbours) {
        final Model model = served.model();
        final GroupConfig placed = served.placed(workers.config());
        final Map<String, String> more = new LinkedHashMap<>(served.settings().environment());
        final List<String> command = command(host, model, address);
        if (neighbours.othersServe()) {
            final boolean early = pool < 0 && isOurs(host, model) && !host.gentleStart().isEmpty();
            more.put("SHUNTER_GENTLE", early ? "early" : "1"); // handlers/placement/gentle.py
            command.addAll(0, early ? host.gentleStart() : List.of());
        }
        if (workers.isNetwork) {
            more.put("SHUNTER_FRONT_END", host.runtime().path().resolve(NETWORK).toString());
            more.put("SHUNTER_MODEL_VERSION", model.getVersion());
            more.put("SHUNTER_RESPONSE_TIMEOUT_S", Integer.toString(model.getResponseTimeout()));
            more.put("SHUNTER_CLASS", served.settings().defaultClass().label());
            more.put("SHUNTER_SLO_NS", Long.toString(served.settings().sloNs()));
            more.put("SHUNTER_CLIENT_TIMEOUT_NS", Long.toString(clientTimeoutNs(model)));
        }
        if (pool >= 0) {
            final PoolSettings pools = host.pools();
            more.put("SHUNTER_POOL", Integer.toString(pool));
            more.put("SHUNTER_POOL_WORKERS", Integer.toString(pools.workers()));
            more.put("SHUNTER_POOL_HOT_MB", Integer.toString(pools.hotMb()));
            more.put("SHUNTER_POOL_THREADS", Integer.toString(pools.threads()));
            if (pools.cores() != null) {
                more.put("SHUNTER_POOL_CORES", pools.cores());
            }
            final int gpus = host.config().getNumberOfGpu();
            if (gpus > 0 && placed.device() == null) {
                more.put("SHUNTER_POOL_GPU", Integer.toString(pool % gpus));
            }
            more.put("SHUNTER_CLASS", served.settings().defaultClass().label());
            more.put("SHUNTER_MODEL_VERSION", model.getVersion());
        }
        final boolean choosesGpu = placed.device() == null && gpuId >= 0;
        final SliceSet slices =
                choosesGpu
                        ? host.slices().of(null, Slices.ofStock(gpuId, System.getenv(DEVICES)))
                        : workers.place.slices();
        more.put("SHUNTER_SLOT", Integer.toString(served.slot().index()));
        more.put("SHUNTER_SLICES", slices.toString());
        if (workers.place.yields()) {
            more.put("SHUNTER_PREEMPTIBLE", "1");
            if (!slices.hasDevice()) {
                more.putIfAbsent("SHUNTER_SCHED", "idle");
            }
        }
        return new WorkerLaunch(
                "W-" + address.port() + "-" + model.getModelVersionName().getVersionedModelName(),
                command,
                environment(host, model, placed, more, neighbours),
                model.getModelDir());
    }

    /** Above a day, the longest deadline that a worker may be told of, there is none. */
    private static long clientTimeoutNs(final Model model) {
        final long ms = model.getClientTimeoutInMills();
        return ms > TimeUnit.DAYS.toMillis(1) ? 0 : Math.max(0, TimeUnit.MILLISECONDS.toNanos(ms));
    }

    /** Whether a model's workers run our worker program. */
    public static boolean isOurs(final Host host, final Model model) {
        return host.pythonHasShunter() && !model.isUseVenv();
    }

    private static List<String> command(
            final Host host, final Model model, final WorkerAddress address) {
        final ConfigManager config = host.config();
        final List<String> command = new ArrayList<>();
        command.add(EnvironmentUtils.getPythonRunTime(model));
        if (isOurs(host, model)) {
            command.addAll(List.of("-m", "shunter.handlers.torchserve.worker"));
        } else {
            command.add(
                    Path.of(config.getModelServerHome(), "ts", "model_service_worker.py")
                            .toAbsolutePath()
                            .toString());
        }
        command.addAll(address.arguments());
        command.addAll(List.of("--metrics-config", config.getMetricsConfigPath()));
        return command;
    }

    private static Map<String, String> environment(
            final Host host,
            final Model model,
            final GroupConfig group,
            final Map<String, String> more,
            final Neighbours neighbours) {
        final Map<String, String> variables = new LinkedHashMap<>();
        final String[] stock =
                EnvironmentUtils.getEnvString(
                        new File(host.config().getModelServerHome()).getAbsolutePath(),
                        model.getModelDir().getAbsolutePath(),
                        model.getModelArchive().getManifest().getModel().getHandler());
        for (final String pair : stock) {
            final int equals = pair.indexOf('=');
            variables.put(pair.substring(0, equals), pair.substring(equals + 1));
        }
        variables.putAll(more);
        variables.put("SHUNTER_RUNTIME", host.runtime().path().toString());
        variables.put("SHUNTER_METRICS", "reply"); // see WorkerOutput.takeMetrics
        if (group.isPinned()) {
            variables.put("SHUNTER_CORES", group.cores());
        }
        if (!neighbours.replaced().isEmpty()) {
            variables.put(
                    "SHUNTER_SHARE_WITH",
                    neighbours.replaced().stream().map(String::valueOf).collect(Collectors.joining(",")));
        }
        variables.put("SHUNTER_STARTUP_TIMEOUT_S", String.valueOf(model.getStartupTimeout()));
        if (group.threads() > 0) {
            final String threads = String.valueOf(group.threads());
            variables.put("SHUNTER_THREADS", threads);
            // Set here too: libraries read these before any Python code runs.
            variables.put("OMP_NUM_THREADS", threads);
            variables.put("MKL_NUM_THREADS", threads);
        }
        if (group.device() != null) {
            variables.put(DEVICES, host.slices().named(group.device()));
        }
        return variables;
    }
}
