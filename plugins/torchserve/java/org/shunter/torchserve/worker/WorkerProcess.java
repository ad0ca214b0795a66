package org.shunter.torchserve.worker;

import java.io.IOException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.stream.Stream;
import org.shunter.torchserve.host.Host;

/** An operating system process that serves models. It knows nothing of any model. */
final class WorkerProcess {
    /** A child of it may keep its output open for longer. */
    private static final long LAST_WORDS_MS = 2000;

    private final Process process;
    private final WorkerOutput output;
    private final WorkerOutput errors;
    private final CompletableFuture<Void> listening = new CompletableFuture<>();

    private WorkerProcess(final WorkerLaunch launch) throws IOException {
        final ProcessBuilder builder =
                new ProcessBuilder(launch.command()).directory(launch.folder());
        builder.environment().clear();
        builder.environment().putAll(launch.environment());
        process = builder.start();
        final Runnable started = () -> listening.complete(null);
        output = new WorkerOutput(launch.name(), process.getInputStream(), false, started);
        errors = new WorkerOutput(launch.name(), process.getErrorStream(), true, started);
        read(process, output, errors);
        process.onExit().thenCompose(ended -> lastWords()).thenAccept(this::endedEarly);
    }

    /** Without the threads that read what it prints, it is ended: nobody would know of it. */
    static void read(final Process process, final Thread output, final Thread errors)
            throws IOException {
        try {
            process.getOutputStream().close();
            output.start();
            errors.start();
        } catch (IOException | RuntimeException | Error e) {
            process.destroyForcibly();
            throw e;
        }
    }

    private void endedEarly(final String why) {
        final String status = "the process ended with status " + process.exitValue();
        listening.completeExceptionally(
                new IOException(
                        status + " before it listened" + (why.isEmpty() ? "" : ": " + why)));
    }

    /** Completed when all it printed is in the log, with the line that says why it ended. */
    CompletableFuture<String> lastWords() {
        return CompletableFuture.allOf(output.ended(), errors.ended())
                .completeOnTimeout(null, LAST_WORDS_MS, TimeUnit.MILLISECONDS)
                .thenApply(
                        read ->
                                Stream.of(
                                                errors.lastException(),
                                                output.lastException(),
                                                errors.lastLine(),
                                                output.lastLine())
                                        .filter(line -> !line.isEmpty())
                                        .findFirst()
                                        .orElse(""));
    }

    /** Start it; returns at once. */
    static WorkerProcess start(final WorkerLaunch launch) throws IOException {
        return new WorkerProcess(launch);
    }

    /** Wait until it listens on its socket. */
    void awaitListening(final long timeoutS) throws IOException, InterruptedException {
        try {
            listening.get(timeoutS, TimeUnit.SECONDS);
        } catch (ExecutionException e) {
            throw new IOException(e.getCause().getMessage(), e.getCause());
        } catch (TimeoutException e) {
            throw new IOException("the process did not listen within " + timeoutS + " s", e);
        }
    }

    /** The process itself, for who must end it with the server. */
    Process process() {
        return process;
    }

    int pid() {
        return (int) process.pid();
    }

    /** Exit status, or null while it runs. */
    Integer exitStatus() {
        return process.isAlive() ? null : process.exitValue();
    }

    /** Run something when it has ended. */
    void onExit(final Runnable action) {
        process.onExit().thenRun(action);
    }

    /** Run something when it has ended, or after that time if it still runs. */
    void afterExit(final long waitMs, final Runnable action) {
        process.onExit()
                .completeOnTimeout(process, waitMs, TimeUnit.MILLISECONDS)
                .thenRun(action);
    }

    /** End it at once. */
    void kill() {
        process.destroyForcibly();
    }

    /** Its connection is closed, which ends it; make sure that it does. */
    void killAfter(final Host host, final long graceMs) {
        if (process.isAlive()) {
            host.timer().schedule(process::destroyForcibly, graceMs, TimeUnit.MILLISECONDS);
        }
    }
}
