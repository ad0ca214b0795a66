package org.shunter.torchserve.worker;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;
import org.junit.jupiter.api.Test;
import org.pytorch.serve.job.Job;
import org.pytorch.serve.util.messages.RequestInput;
import org.pytorch.serve.util.messages.WorkerCommands;
import org.shunter.torchserve.forming.RequestClass;
import org.shunter.torchserve.forming.Rerun;
import org.shunter.torchserve.host.TestHost;
import org.shunter.torchserve.queue.Entry;
import org.shunter.torchserve.queue.Loss;
import org.shunter.torchserve.queue.WorkerState;

/** How the process of a worker comes and goes. */
final class WorkerTest {
    private static final String NO_SHUNTER = "[ \"$2\" = -c ] && exit 3";

    private static void await(final String what, final BooleanSupplier happened) throws Exception {
        final long endNs = System.nanoTime() + TimeUnit.SECONDS.toNanos(TestHost.LONGEST_S);
        while (!happened.getAsBoolean()) {
            assertTrue(System.nanoTime() - endNs < 0, () -> "never: " + what);
            Thread.sleep(5);
        }
    }

    @Test
    void aProcessThatNobodyCanReadIsEnded() throws Exception {
        final Process process = new ProcessBuilder("sleep", "600").start();
        final Thread started = new Thread(() -> {});
        started.start(); // so that it cannot be started again
        assertThrows(
                IllegalThreadStateException.class,
                () -> WorkerProcess.read(process, new Thread(() -> {}), started));
        assertTrue(process.waitFor(TestHost.LONGEST_S, TimeUnit.SECONDS), "it runs for ever");
    }

    @Test
    void aRestartThatFindsNoThreadIsTriedAgain() throws Exception {
        try (TestHost test = new TestHost(NO_SHUNTER, "echo . >> starts", "exit 3")) {
            final Worker worker = new FakeModel(test).worker();
            test.refuse(0, 1);
            worker.start();
            final Path starts = test.folder().resolve("starts");
            await("it starts again", () -> lines(starts) >= 2);
            worker.end();
            worker.ended.get(TestHost.LONGEST_S, TimeUnit.SECONDS);
        }
    }

    private static int lines(final Path file) {
        try {
            return Files.readAllLines(file).size();
        } catch (java.io.IOException e) {
            return 0;
        }
    }

    @Test
    void whoIsEndedForItsFaultDidNotRunOutOfMemory() throws Exception {
        final String listens = "echo Torch worker started.";
        for (final String ends : List.of("exec sleep 600", "kill -9 $$")) {
            final boolean diesFirst = ends.startsWith("kill");
            try (TestHost test = new TestHost(NO_SHUNTER, diesFirst ? ":" : listens, ends)) {
                final Worker[] lost = new Worker[1];
                final FakeModel model =
                        new FakeModel(test) {
                            @Override
                            public void setProblem(final String cause) { // before it is told
                                try {
                                    await("its process is gone", () -> !lost[0].isAlive());
                                } catch (Exception e) {
                                    throw new AssertionError(e);
                                }
                            }
                        };
                lost[0] = model.worker();
                test.host.execute(lost[0]::start); // nobody is at its socket
                final int told = lost[0].firstLoad.get(TestHost.LONGEST_S, TimeUnit.SECONDS);
                assertEquals(diesFirst ? Loss.INSUFFICIENT_STORAGE : 500, told, ends);
                lost[0].end();
                lost[0].ended.get(TestHost.LONGEST_S, TimeUnit.SECONDS);
            }
        }
    }

    @Test
    void aProcessIsToldHowLongItMayTakeToLoad() throws Exception {
        final String tells = "echo $SHUNTER_STARTUP_TIMEOUT_S > told.new; mv told.new told";
        try (TestHost test = new TestHost(NO_SHUNTER, tells, "exec sleep 600")) {
            final FakeModel model = new FakeModel(test);
            model.model().setStartupTimeout(40);
            final Worker worker = model.worker();
            test.host.execute(worker::start); // which waits until it listens
            final Path told = test.folder().resolve("told");
            await("it has started", () -> Files.exists(told));
            assertEquals("40", Files.readString(told).strip());
            worker.end();
            worker.ended.get(TestHost.LONGEST_S, TimeUnit.SECONDS);
        }
    }

    @Test
    void aWorkerStartsAsItsPythonSaysWhereOthersServe() throws Exception {
        final String asked = "[ \"$2\" = -c ] && { echo env; echo STARTED=gently; exit 0; }";
        final String tells = "echo $STARTED $SHUNTER_GENTLE > told.new; mv told.new told";
        for (final boolean othersServe : List.of(true, false)) {
            try (TestHost test = new TestHost(asked, tells, "exec sleep 600")) {
                final FakeModel model =
                        new FakeModel(test) {
                            @Override
                            public WorkerLaunch.Neighbours neighboursOf(final Worker starting) {
                                return new WorkerLaunch.Neighbours(List.of(), othersServe);
                            }
                        };
                final Worker worker = model.worker();
                test.host.execute(worker::start);
                final Path told = test.folder().resolve("told");
                await("it has started", () -> Files.exists(told));
                assertEquals(othersServe ? "gently early" : "", Files.readString(told).strip());
                worker.end();
                worker.ended.get(TestHost.LONGEST_S, TimeUnit.SECONDS);
            }
        }
    }

    @Test
    void whoIsEndedBeforeItsProcessIsKnownEndsWithIt() throws Exception {
        try (TestHost test = new TestHost(NO_SHUNTER, "exec sleep 600")) {
            final FakeModel model =
                    new FakeModel(test) {
                        @Override
                        public WorkerLaunch.Neighbours neighboursOf(final Worker starting) {
                            starting.end();
                            return super.neighboursOf(starting);
                        }
                    };
            final Worker worker = model.worker();
            test.host.execute(worker::start);
            worker.ended.get(TestHost.LONGEST_S, TimeUnit.SECONDS);
            assertTrue(worker.pid() > 0, "it never had a process");
        }
    }

    /** A request whose client does something when it hears that its worker was lost. */
    private static Entry request(final Runnable onError) {
        final Job job =
                new Job("m", "1.0", WorkerCommands.PREDICT, new RequestInput("r")) {
                    @Override
                    public void response(
                            final byte[] bytes,
                            final CharSequence contentType,
                            final int status,
                            final String phrase,
                            final java.util.Map<String, String> headers) {}

                    @Override
                    public void sendError(final int status, final String text) {
                        onError.run();
                    }

                    @Override
                    public boolean isOpen() {
                        return true;
                    }
                };
        return new Entry(job, RequestClass.STRICT, 0, Entry.NEVER, Rerun.NEVER);
    }

    @Test
    void whoIsLostAndEndedAtTheSameTimeLeavesTheSocketOfTheNextOneAlone() throws Exception {
        try (TestHost test = new TestHost(NO_SHUNTER, "exec sleep 600")) {
            final FakeModel model = new FakeModel(test);
            final Worker worker = model.worker();
            test.host.execute(worker::start);
            await("its process is there", () -> worker.pid() > 0);
            model.dispatcher().change(worker, WorkerState.Event.STARTED);
            model.dispatcher().onReady(worker);
            model.dispatcher().setWorkers(List.of(worker));
            model.dispatcher().offer(request(worker::end));
            worker.inFlight.peekFirst().sent = true;
            final Loss loss = Loss.timedOut("told to");
            final long later = System.nanoTime() + TimeUnit.HOURS.toNanos(1);
            assertEquals(worker, model.dispatcher().giveUpOverdue(List.of(worker), later, loss));
            worker.ended.get(TestHost.LONGEST_S, TimeUnit.SECONDS); // its number may be given again
            final Path next = Files.createFile(Path.of(worker.address.path()));
            worker.onTimedOut(loss);
            assertTrue(Files.exists(next), "the next worker's socket is gone");
            assertEquals(1, model.endings.get());
        }
    }
}
