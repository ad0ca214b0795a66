package org.shunter.torchserve.host;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.function.LongSupplier;
import org.shunter.torchserve.events.Level;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Keeps a Python program of ours running: it is started again, later each time, when it ends or
 * hangs. Its standard input stays open as long as this JVM lives; its errors go to the log.
 */
public final class Supervisor {
    private static final Logger LOGGER = LoggerFactory.getLogger(Supervisor.class);
    private static final long FIRST_DELAY_MS = 200;
    private static final long LONGEST_DELAY_MS = 30_000;
    private static final long GOOD_RUN_NS = TimeUnit.SECONDS.toNanos(60);
    private static final long LAST_WORDS_MS = 1000;
    private static final long LOOK_MS = 1000;
    /** Both programs write several times a second; seconds of silence are not load. */
    private static final int MOST_LOOKS = 15;

    private static final String LEVEL = "^(CRITICAL|ERROR|WARNING|INFO) ";

    private final Host host;
    private final String name;
    private final List<String> arguments;
    private final String meanwhile;
    private final LongSupplier heartbeat;
    private final Silence silence =
            new Silence(TimeUnit.MILLISECONDS.toNanos(LOOK_MS), MOST_LOOKS);
    private Future<?> looks;
    private Process process;
    private long startedNs;
    private long delayMs = FIRST_DELAY_MS;
    private boolean stopped;
    private int restarts;
    private volatile String lastLine = "";

    /**
     * A program that is not started yet.
     *
     * @param name what the log calls it
     * @param arguments those of Python
     * @param meanwhile what holds while it is away
     * @param heartbeat a number that the running program changes all the time
     */
    public Supervisor(
            final Host host,
            final String name,
            final List<String> arguments,
            final String meanwhile,
            final LongSupplier heartbeat) {
        this.host = host;
        this.name = name;
        this.arguments = arguments;
        this.meanwhile = meanwhile;
        this.heartbeat = heartbeat;
    }

    /** Start it, when Python can. */
    public synchronized void start() {
        if (host.pythonHasShunter()) {
            launch();
            looks =
                    host.timer()
                            .scheduleWithFixedDelay(
                                    this::look, LOOK_MS, LOOK_MS, TimeUnit.MILLISECONDS);
        }
    }

    /** End it when it hangs, even while it is to end. */
    private synchronized void look() {
        if (!isAlive()) {
            if (stopped) {
                looks.cancel(false);
            }
        } else if (silence.look(heartbeat.getAsLong(), System.nanoTime())) {
            LOGGER.error(
                    "The {}, process {}, has been silent for {} s and is killed",
                    name,
                    process.pid(),
                    silence.seconds());
            final String text = "hung for " + silence.seconds() + " s and is killed";
            host.events().tell(Level.ERROR, name, text);
            process.destroyForcibly();
        }
    }

    private synchronized void launch() {
        if (stopped) {
            return;
        }
        startedNs = System.nanoTime();
        final List<String> command = new ArrayList<>();
        // -P: TorchServe's working directory is not a place to import from.
        command.addAll(List.of(host.config().getPythonExecutable(), "-P"));
        command.addAll(arguments);
        try {
            process =
                    new ProcessBuilder(command)
                            .redirectOutput(ProcessBuilder.Redirect.DISCARD)
                            .start();
            observe(process);
        } catch (IOException | RuntimeException | Error e) { // an Error: no thread to be had
            LOGGER.warn("The {} could not be started: {}", name, e.toString());
            kill(process);
            relaunchLater();
        }
    }

    private void observe(final Process running) {
        silence.begin(heartbeat.getAsLong(), System.nanoTime());
        final Thread log = new Thread(() -> log(running), "shunter-log");
        log.setDaemon(true);
        log.start();
        running.onExit().thenAccept(ended -> onExit(ended, log));
    }

    private static void kill(final Process process) {
        if (process != null) {
            process.destroyForcibly();
        }
    }

    private void log(final Process running) {
        try (BufferedReader lines =
                new BufferedReader(
                        new InputStreamReader(running.getErrorStream(), StandardCharsets.UTF_8))) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                relay(line);
                lastLine = line;
            }
        } catch (IOException e) {
            LOGGER.debug("Log of the {} ended: {}", name, e.toString());
        }
    }

    /** Its lines begin with their level. */
    private void relay(final String line) {
        if (line.startsWith("ERROR ") || line.startsWith("CRITICAL ")) {
            LOGGER.error("{}: {}", name, line);
            host.events().tell(Level.ERROR, name, line.replaceFirst(LEVEL, ""));
        } else if (line.startsWith("WARNING ")) {
            LOGGER.warn("{}: {}", name, line);
            host.events().tell(Level.WARNING, name, line.replaceFirst(LEVEL, ""));
        } else {
            LOGGER.info("{}: {}", name, line);
            host.events().tell(Level.INFO, name, line.replaceFirst(LEVEL, ""));
        }
    }

    private void onExit(final Process ended, final Thread log) {
        try {
            log.join(LAST_WORDS_MS); // why it ended is in its last line
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
        synchronized (this) {
            if (stopped || ended != process) {
                return;
            }
            LOGGER.error(
                    "The {} ended with status {} ({}); {}; it starts again in {} ms",
                    name,
                    ended.exitValue(),
                    lastLine,
                    meanwhile,
                    delayMs);
            host.events()
                    .tell(
                            Level.ERROR,
                            name,
                            "ended with status " + ended.exitValue() + "; it starts again; " + meanwhile);
            if (System.nanoTime() - startedNs > GOOD_RUN_NS) {
                delayMs = FIRST_DELAY_MS;
            }
            relaunchLater();
        }
    }

    private synchronized void relaunchLater() {
        restarts++;
        host.timer().schedule(this::relaunch, delayMs, TimeUnit.MILLISECONDS);
        delayMs = Math.min(2 * delayMs, LONGEST_DELAY_MS);
    }

    private void relaunch() {
        try {
            host.execute(this::launch);
        } catch (RuntimeException | Error e) { // else nobody would ever start it again
            LOGGER.warn("The {} could not be started: {}", name, e.toString());
            relaunchLater();
        }
    }

    /** Tell it to end for good. */
    public synchronized void stop() {
        stopped = true;
        if (process != null) {
            process.destroy();
        }
    }

    /** End it at once. */
    synchronized void kill() {
        stopped = true;
        kill(process);
    }

    synchronized boolean isAlive() {
        return process != null && process.isAlive();
    }

    /** {@code running}, {@code hung}, {@code restarting} or {@code off}. */
    public synchronized String state() {
        if (!host.pythonHasShunter()) {
            return "off";
        }
        if (!isAlive()) {
            return "restarting";
        }
        return silence.isSuspicious() ? "hung" : "running";
    }

    /** Its process id, or 0. */
    public synchronized long pid() {
        return isAlive() ? process.pid() : 0;
    }

    public synchronized int restarts() {
        return restarts;
    }
}
