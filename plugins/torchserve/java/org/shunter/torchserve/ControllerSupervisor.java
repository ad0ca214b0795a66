package org.shunter.torchserve;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Keeps the Python controller running. Serving never waits for it: while it is away the last
 * numbers on the control page stay in force.
 */
final class ControllerSupervisor {
    private static final Logger LOGGER = LoggerFactory.getLogger(ControllerSupervisor.class);
    private static final long FIRST_DELAY_MS = 200;
    private static final long LONGEST_DELAY_MS = 30_000;
    private static final long GOOD_RUN_NS = TimeUnit.SECONDS.toNanos(60);

    private final Host host;
    private Process process;
    private long startedNs;
    private long delayMs = FIRST_DELAY_MS;
    private boolean stopped;
    private int restarts;

    private ControllerSupervisor(final Host host) {
        this.host = host;
    }

    /** Start it, when Python can. */
    static ControllerSupervisor start(final Host host) {
        final ControllerSupervisor supervisor = new ControllerSupervisor(host);
        if (host.pythonHasShunter()) {
            supervisor.launch();
        }
        return supervisor;
    }

    private synchronized void launch() {
        if (stopped) {
            return;
        }
        startedNs = System.nanoTime();
        try {
            process =
                    new ProcessBuilder(command())
                            .redirectOutput(ProcessBuilder.Redirect.DISCARD)
                            .start();
        } catch (IOException e) {
            LOGGER.warn("The controller could not be started: {}", e.toString());
            relaunchLater();
            return;
        }
        final Process running = process;
        final Thread log = new Thread(() -> log(running), "shunter-controller-log");
        log.setDaemon(true);
        log.start();
        running.onExit().thenAccept(this::onExit);
    }

    /** Its standard input stays open as long as this JVM lives; the end of it ends the controller. */
    private List<String> command() {
        final List<String> command = new ArrayList<>();
        command.add(host.config().getPythonExecutable());
        // -P: TorchServe's working directory is not a place to import from.
        command.addAll(List.of("-P", "-m", "shunter.plugins.controller", "--page"));
        command.add(host.runtime().path().resolve(ControlPage.FILE).toString());
        command.addAll(List.of("--directory", System.getProperty("user.dir")));
        final String config = host.config().getProperty("shunter_config", null);
        if (config != null) {
            command.addAll(List.of("--config", config));
        }
        return command;
    }

    private static void log(final Process running) {
        try (BufferedReader lines =
                new BufferedReader(
                        new InputStreamReader(running.getErrorStream(), StandardCharsets.UTF_8))) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                LOGGER.info("controller: {}", line);
            }
        } catch (IOException e) {
            LOGGER.debug("Log of the controller ended: {}", e.toString());
        }
    }

    private synchronized void onExit(final Process ended) {
        if (stopped || ended != process) {
            return;
        }
        LOGGER.warn(
                "The controller ended with status {}; its last numbers stay in force",
                ended.exitValue());
        if (System.nanoTime() - startedNs > GOOD_RUN_NS) {
            delayMs = FIRST_DELAY_MS;
        }
        relaunchLater();
    }

    private void relaunchLater() {
        restarts++;
        host.timer().schedule(() -> host.execute(this::launch), delayMs, TimeUnit.MILLISECONDS);
        delayMs = Math.min(2 * delayMs, LONGEST_DELAY_MS);
    }

    /** End it for good. */
    synchronized void stop() {
        stopped = true;
        if (process != null) {
            process.destroy();
        }
    }

    /** {@code running}, {@code restarting} or {@code off}. */
    synchronized String state() {
        if (!host.pythonHasShunter()) {
            return "off";
        }
        return process != null && process.isAlive() ? "running" : "restarting";
    }

    /** Its process id, or 0. */
    synchronized long pid() {
        return process != null && process.isAlive() ? process.pid() : 0;
    }

    synchronized int restarts() {
        return restarts;
    }
}
