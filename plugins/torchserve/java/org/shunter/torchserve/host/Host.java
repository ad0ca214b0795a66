package org.shunter.torchserve.host;

import io.netty.channel.EventLoopGroup;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.BiConsumer;
import org.pytorch.serve.util.ConfigManager;
import org.shunter.torchserve.dispatch.Dispatcher;
import org.shunter.torchserve.events.Events;
import org.shunter.torchserve.page.ControlPage;
import org.shunter.torchserve.page.RuntimeFolder;
import org.shunter.torchserve.placement.DeviceNames;
import org.shunter.torchserve.placement.Slices;
import org.shunter.torchserve.preemption.Hold;
import org.shunter.torchserve.preemption.PoolRooms;
import org.shunter.torchserve.preemption.Turns;
import org.shunter.torchserve.queue.Recent;
import org.shunter.torchserve.settings.PoolSettings;
import org.shunter.torchserve.stock.StockMetrics;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** What every served model uses of this server: threads, timers, numbers, the shared folder. */
public final class Host {
    private static final Logger LOGGER = LoggerFactory.getLogger(Host.class);

    private final ConfigManager config;
    private final EventLoopGroup backendGroup;
    private final BiConsumer<String, Recent.Line> ended;
    private WorkerNumbers numbers;
    private AtomicInteger gpus;
    private final Set<Process> processes = ConcurrentHashMap.newKeySet();
    private final RuntimeFolder runtime;
    private final ControlPage page;
    private final Hold hold;
    private final Turns turns;
    private final PoolRooms rooms = new PoolRooms();
    private final Slices slices =
            new Slices(new DeviceNames(this::askForDevices, LOGGER::warn), LOGGER::warn);
    private final Events events = new Events(System.getenv(Events.VARIABLE));
    private final boolean pythonHasShunter;
    private final List<String> gentleStart;
    private PoolSettings pools;
    private final ScheduledThreadPoolExecutor timer;
    private final ExecutorService pool;

    /** {@code ended}: hears of each model's requests that end, or null. */
    public Host(
            final ConfigManager config,
            final EventLoopGroup backendGroup,
            final BiConsumer<String, Recent.Line> ended)
            throws IOException {
        this.config = config;
        this.backendGroup = backendGroup;
        this.ended = ended;
        final long pid = ProcessHandle.current().pid();
        this.runtime = RuntimeFolder.create(pid);
        try {
            this.page = ControlPage.create(runtime.path(), pid);
        } catch (IOException e) {
            runtime.remove();
            throw e;
        }
        this.hold = new Hold(page);
        this.turns = new Turns(page);
        final String found = probePython(config.getPythonExecutable());
        this.pythonHasShunter = found != null;
        this.gentleStart = found == null ? List.of() : found.strip().lines().toList();
        this.timer = new ScheduledThreadPoolExecutor(1, task -> daemon(task, "shunter-timer"));
        timer.setRemoveOnCancelPolicy(true);
        this.pool = Executors.newCachedThreadPool(task -> daemon(task, "shunter-pool"));
    }

    private static Thread daemon(final Runnable task, final String name) {
        final Thread thread = new Thread(task, name);
        thread.setDaemon(true);
        return thread;
    }

    /** How its workers start beside others; null if it has no Shunter. */
    private static String probePython(final String python) {
        final String probe =
                "import importlib.util as u, sys;"
                        + "all(u.find_spec(m) for m in"
                        + " ('shunter.handlers.torchserve.worker', 'shunter.plugins.control.controller'))"
                        + " or sys.exit(3);"
                        + "from shunter.plugins import gentle_start;"
                        + "gentle_start.main()";
        final String said = output(List.of(python, "-P", "-c", probe)); // not from its folder
        if (said != null) {
            return said;
        }
        LOGGER.warn(
                "Python package shunter is not installed for {}: serving with stock workers and the"
                        + " plugin's built-in numbers; pip install shunter there to change that",
                python);
        return null;
    }

    /** What a program prints, which fits into a pipe; null unless it ends soon and well. */
    private static String output(final List<String> command) {
        try {
            final Process process =
                    new ProcessBuilder(command)
                            .redirectError(ProcessBuilder.Redirect.DISCARD)
                            .start();
            if (process.waitFor(30, TimeUnit.SECONDS)) {
                final byte[] printed = process.getInputStream().readAllBytes();
                return process.exitValue() == 0 ? new String(printed, StandardCharsets.UTF_8) : null;
            }
            process.destroyForcibly();
        } catch (IOException e) {
            LOGGER.warn("{} could not be started: {}", command.get(0), e.toString());
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
        return null;
    }

    /** What names of devices stand for, in JSON; {@code null} where nobody knows. */
    private String askForDevices(final List<String> names) {
        final List<String> command = new ArrayList<>();
        command.add(config.getPythonExecutable());
        command.addAll(List.of("-P", "-m", "shunter.allocator.devices.names", "--"));
        command.addAll(names);
        final String answer = pythonHasShunter ? output(command) : null;
        return answer == null ? "null" : answer;
    }

    public ConfigManager config() {
        return config;
    }

    public EventLoopGroup backendGroup() {
        return backendGroup;
    }

    public RuntimeFolder runtime() {
        return runtime;
    }

    public ControlPage page() {
        return page;
    }

    /** What happened in this server, and why. */
    public Events events() {
        return events;
    }

    /** What strict requests hold on this server. */
    public Hold hold() {
        return hold;
    }

    /** Whose turn it is on this server. */
    public Turns turns() {
        return turns;
    }

    /** Room in the processes that serve several models each. */
    public PoolRooms rooms() {
        return rooms;
    }

    /** What all dispatchers of this server use. */
    public Dispatcher.Shared shared() {
        return new Dispatcher.Shared(
                timer::schedule, hold, turns, System::nanoTime, StockMetrics::batchDone, ended);
    }

    /** The parts of this machine. */
    public Slices slices() {
        return slices;
    }

    /** What the settings say of processes with several models; they are read when the first is. */
    public synchronized PoolSettings pools() {
        if (pools == null && !settingsNamePools()) {
            pools = PoolSettings.of(System.getenv());
        }
        if (pools == null) {
            final List<String> command =
                    new ArrayList<>(
                            List.of(
                                    config.getPythonExecutable(),
                                    "-P",
                                    "-m",
                                    "shunter.plugins.control.settings"));
            final String said = pythonHasShunter ? output(withSettings(command)) : null;
            try {
                pools = PoolSettings.parse(said == null ? "" : said);
            } catch (IllegalArgumentException e) {
                LOGGER.warn("The settings of pools cannot be read: {}", said);
                pools = PoolSettings.of(System.getenv());
            }
        }
        return pools;
    }

    /** Whether the settings say anything of them: to ask costs the start of a Python. */
    private boolean settingsNamePools() {
        final String variable = System.getenv("SHUNTER_CONFIG");
        String named = config.getProperty("shunter_config", "");
        named = named.isEmpty() && variable != null ? variable : named;
        final Path path =
                Path.of(System.getProperty("user.dir"))
                        .resolve(named.isEmpty() ? "shunter.toml" : named);
        try {
            return Files.readString(path, StandardCharsets.ISO_8859_1).contains("pool");
        } catch (IOException e) {
            return false; // if there should be one, the controller says so
        }
    }

    /** Whether workers and the controller can be ours. */
    public boolean pythonHasShunter() {
        return pythonHasShunter;
    }

    /** What the command of a worker begins with that starts beside others; may be nothing. */
    public List<String> gentleStart() {
        return gentleStart;
    }

    /** One thread for everything that must happen at a time; tasks are short. */
    public ScheduledExecutorService timer() {
        return timer;
    }

    /** Arguments of a program of ours, with the settings that config.properties may name. */
    public List<String> withSettings(final List<String> arguments) {
        final List<String> all = new ArrayList<>(arguments);
        final String settings = config.getProperty("shunter_config", null);
        if (settings != null) {
            all.addAll(List.of("--config", settings));
        }
        return all;
    }

    /** Run something that may take long. */
    public void execute(final Runnable task) {
        pool.execute(task);
    }

    /** Number workers and GPUs with the counters that stock workers also use. */
    public void countWith(final AtomicInteger portCounter, final AtomicInteger gpuCounter) {
        numbers = new WorkerNumbers(portCounter::getAndIncrement);
        gpus = gpuCounter;
    }

    /** Remember a process until it ends. */
    public void watch(final Process process) {
        processes.add(process);
        process.onExit().whenComplete((ended, noThread) -> processes.remove(process));
    }

    /** The server ends: no process may outlive it, not even one that hangs. */
    public void killWorkers() {
        processes.forEach(Process::destroyForcibly);
    }

    /** A new worker's address. */
    public WorkerAddress nextAddress() {
        return WorkerAddress.of(runtime, numbers.take());
    }

    /** The worker with that address is gone; another may have it. */
    public void release(final WorkerAddress address) {
        numbers.release(address.port());
    }

    /** The next of so many GPUs, round robin over all models as in stock. */
    public int nextGpu(final int count) {
        return gpus.accumulateAndGet(count, (previous, n) -> (previous + 1) % n);
    }
}
