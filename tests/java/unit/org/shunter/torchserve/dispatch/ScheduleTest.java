package org.shunter.torchserve.dispatch;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assertions.fail;
import static org.shunter.torchserve.dispatch.TestModel.MS;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import org.apache.logging.log4j.Level;
import org.apache.logging.log4j.core.config.Configurator;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.shunter.torchserve.forming.RequestClass;
import org.shunter.torchserve.forming.Rerun;
import org.shunter.torchserve.page.ControlLayout;
import org.shunter.torchserve.page.ControlPage;
import org.shunter.torchserve.page.ModelSlot;
import org.shunter.torchserve.preemption.Hold;
import org.shunter.torchserve.preemption.Turns;
import org.shunter.torchserve.queue.Batch;
import org.shunter.torchserve.queue.BatchWorker;
import org.shunter.torchserve.queue.Entry;
import org.shunter.torchserve.queue.Loss;
import org.shunter.torchserve.queue.Reply;
import org.shunter.torchserve.queue.WorkerGroup;
import org.shunter.torchserve.queue.WorkerState;

/**
 * Random orders of everything that may happen to a model. {@code -Dshunter.schedules} says how many,
 * {@code -Dshunter.seed} runs the one that failed.
 */
class ScheduleTest {
    @BeforeAll
    static void faultsAreExpected() {
        Configurator.setLevel("org.shunter", Level.OFF);
    }

    @Test
    void everyRequestGetsOneAnswerWhateverHappens() {
        final String only = System.getProperty("shunter.seed", "");
        if (!only.isEmpty()) {
            new Schedule(Long.parseLong(only)).run();
            return;
        }
        final int count = Integer.getInteger("shunter.schedules", 400);
        for (long seed = 0; seed < count; seed++) {
            try {
                new Schedule(seed).run();
            } catch (RuntimeException | AssertionError e) {
                fail("schedule with seed " + seed + ": " + e, e);
            }
        }
    }

    /** One schedule. */
    static class Schedule extends TestModel {
        private final Random random;
        /** Nothing that lets best effort go before strict is asked for. */
        private final boolean plain;
        final List<FakeWorker> workers = new ArrayList<>();
        List<FakeWorker> current = new ArrayList<>();
        private final Map<Request, Fate> fates = new HashMap<>();
        private int names;

        Schedule(final long seed) {
            this(new Random(seed));
        }

        private Schedule(final Random random) {
            this(random, limits(random));
        }

        private Schedule(final Random random, final Dispatcher.Limits limits) {
            super(limits);
            this.random = random;
            this.plain = !limits.company() && random.nextBoolean();
        }

        /** One of several on a page. */
        Schedule(
                final Random random,
                final Dispatcher.Limits limits,
                final ControlPage page,
                final Hold hold,
                final Turns turns) {
            super(limits, page, hold, turns);
            this.random = random;
            this.plain = false;
        }

        static Dispatcher.Limits limits(final Random random) {
            return new Dispatcher.Limits(
                    random.nextBoolean() ? 100 : 4,
                    random.nextBoolean() ? 0 : 5000,
                    random.nextBoolean() ? 0 : 20 * MS,
                    random.nextInt(4) == 0);
        }

        void run() {
            reconfigure();
            final int events = 5 + random.nextInt(80);
            for (int i = 0; i < events; i++) {
                happen();
            }
            finish();
        }

        /** One event. */
        void happen() {
            happen(random.nextInt(100));
            check();
        }

        private void happen(final int what) {
            if (what < 40) {
                offer();
            } else if (what < 55) {
                reply();
            } else if (what < 62) {
                lose();
            } else if (what < 72) {
                comeBack();
            } else if (what < 80) {
                pass(random.nextInt(10) == 0 ? 1100 * MS : random.nextInt(20) * MS / 4);
            } else if (what < 84 && !requests.isEmpty()) {
                final Request request = requests.get(random.nextInt(requests.size()));
                abandon(request);
            } else if (what < 87) {
                reconfigure();
            } else if (what < 92) {
                command(this::writeCommands);
                if (random.nextBoolean()) {
                    dispatcher.refresh();
                }
            } else if (what < 98) {
                disturb(pick(current));
            } else if (what == 98) {
                dispatcher.failWaiting(503, "told to");
            } else {
                page.set(ControlLayout.H_EXCLUSIVE, plain ? 0 : random.nextInt(2));
                dispatcher.refresh();
            }
        }

        private Fate fate(final Request request) {
            return fates.computeIfAbsent(request, r -> new Fate());
        }

        private Fate fate(final Entry entry) {
            return fate((Request) entry.job);
        }

        private <T> T pick(final List<T> of) {
            return of.get(random.nextInt(of.size()));
        }

        private void offer() {
            final String name = "r" + names++;
            final Request request = new Request(name, random.nextInt(20) == 0 ? null : name);
            final RequestClass requestClass = pick(List.of(RequestClass.all()));
            final long relativeNs = random.nextInt(3) == 0 ? 1 + random.nextInt(50) * MS : 0;
            offer(request, requestClass, relativeNs, pick(List.of(Rerun.values())));
        }

        private void reply() {
            final FakeWorker worker = pick(workers);
            final Batch running = worker.inFlight.peekFirst();
            if (running == null || !running.sent) {
                return;
            }
            switch (random.nextInt(8)) {
                case 0:
                    worker.fail(random.nextBoolean() ? 500 : 507);
                    break;
                case 1:
                    if (running.entries.get(0).job.getJobId() != null && running.size() == 1) {
                        worker.answerPart();
                    }
                    break;
                case 2:
                    dispatcher.onReply(worker, new Reply(200, "", List.of())); // nothing in it
                    break;
                default:
                    worker.answer();
            }
        }

        private void lose() {
            final FakeWorker worker = pick(workers);
            final Batch running = worker.inFlight.peekFirst();
            final Loss.Kind kind =
                    random.nextInt(3) == 0 ? Loss.Kind.TIMED_OUT : Loss.Kind.DIED;
            final boolean begun = running != null && running.sent;
            final List<Entry> ran = begun ? List.copyOf(running.entries) : List.of();
            for (final Entry entry : ran) {
                final Fate fate = fate(entry);
                fate.deaths++;
                fate.isOver |=
                        entry.rerun == Rerun.NEVER
                                || fate.deaths > 1
                                || entry.rerun != Rerun.ALWAYS && kind == Loss.Kind.TIMED_OUT;
            }
            worker.lose(new Loss(kind, 500, "told to"));
        }

        private void comeBack() {
            final FakeWorker worker = pick(workers);
            if (worker.state == WorkerState.BACKOFF) {
                worker.comeBack();
            }
        }

        void reconfigure() {
            final List<FakeWorker> old = current;
            current = new ArrayList<>();
            final int count = 1 + random.nextInt(3);
            for (int i = 0; i < count; i++) {
                final WorkerGroup<BatchWorker> group =
                        plain || random.nextInt(3) > 0
                                ? group(i)
                                : group(i, pick(List.of(RequestClass.all())));
                current.add(new FakeWorker(group, 1 + random.nextInt(4)));
            }
            workers.addAll(current);
            dispatcher.setWorkers(current);
            old.forEach(FakeWorker::drain);
            if (random.nextInt(4) == 0 && !old.isEmpty()) {
                end(pick(old));
            }
        }

        /** Deliberately; what it ran may run again unless it must not run twice. */
        private void end(final FakeWorker worker) {
            final Batch running = worker.inFlight.peekFirst();
            if (running != null && running.sent) {
                for (final Entry entry : running.entries) {
                    fate(entry).isOver |= entry.rerun == Rerun.NEVER;
                }
            }
            worker.end();
        }

        private void writeCommands() {
            for (int group = 0; group < 3; group++) {
                slot.set(
                        ModelSlot.ofGroup(ControlLayout.S_COMMAND_CAP, group),
                        pick(List.of(0, 0, 1, 2, 8)));
                for (final RequestClass requestClass : RequestClass.all()) {
                    weigh(group, requestClass, plain ? 1000 : pick(List.of(0, 500, 1000, 1000)));
                }
            }
            slot.set(ControlLayout.S_AHEAD_BATCHES, random.nextInt(2));
            slot.set(ControlLayout.S_AGEING_US, plain ? 0 : pick(List.of(0, 10_000, 1_000_000)));
            slot.set(ControlLayout.S_MIX_CLASSES, plain ? 0 : random.nextInt(2));
            slot.set(
                    ControlLayout.S_THRESHOLD_FIXED_MILLI,
                    plain ? 0 : pick(List.of(0, 0, 1000, 4000)));
            workers.forEach(worker -> worker.faults = 0); // they are for decisions, not for the door
            slot.set(ControlLayout.S_ADMISSION, plain ? 0 : random.nextInt(2));
        }

        private void disturb(final FakeWorker worker) {
            switch (random.nextInt(4)) {
                case 0:
                    worker.unencodable = 1;
                    break;
                case 1:
                    worker.canWrite = false;
                    break;
                case 2:
                    worker.canWrite = true;
                    worker.flush();
                    break;
                default:
                    worker.faults = slot.get(ControlLayout.S_ADMISSION) == 1 ? 0 : 1;
            }
        }

        @Override
        void onGiven(final FakeWorker worker, final Batch batch) {
            final int held = worker.inFlight.size();
            assertTrue(held <= 1 + commands.aheadBatches, () -> held + " batches in flight");
            assertTrue(batch.size() <= worker.allowed(), () -> "a batch of " + batch.size());
            assertEquals(WorkerState.READY, worker.state);
            for (final Entry entry : batch.entries) {
                assertEquals(Entry.Stage.SENT, entry.stage);
                assertTrue(!fate(entry).isOver, () -> entry.job + " runs again");
                assertTrue(!entry.alone() || batch.size() == 1 && held == 1, "it must run alone");
                assertTrue(
                        commands.mixClasses || entry.requestClass == batch.requestClass,
                        "classes are mixed");
            }
            if (batch.requestClass == RequestClass.BEST_EFFORT && nothingKeepsStrictBack(worker)) {
                assertTrue(
                        entries.values().stream().noneMatch(Schedule::isStrictAndWaits),
                        () -> batch.entries.get(0).job + " goes before strict");
            }
        }

        private static boolean isStrictAndWaits(final Entry entry) {
            return entry.stage == Entry.Stage.QUEUED && entry.requestClass == RequestClass.STRICT;
        }

        /** Neither ageing, nor a wait for a full batch, nor a worker that is better for it and busy. */
        private boolean nothingKeepsStrictBack(final FakeWorker worker) {
            return plain
                    && commands.commanded()
                    && commands.ageingUs == 0
                    && current.stream().allMatch(w -> w == worker || w.inFlight.isEmpty());
        }

        private void check() {
            for (final FakeWorker worker : workers) {
                assertEquals(worker.inFlight.size(), worker.held);
                for (final Batch batch : worker.inFlight) {
                    final boolean runs = batch == worker.inFlight.peekFirst();
                    batch.entries.forEach(e -> checkSent(e, runs));
                }
            }
        }

        /** What was given to a worker expires only while it is behind something else. */
        private void checkSent(final Entry entry, final boolean runs) {
            final boolean expired = entry.stage == Entry.Stage.EXPIRED;
            assertTrue(expired || entry.stage == Entry.Stage.SENT, () -> "it is " + entry.stage);
            assertTrue(expired || runs || entry.deadlineNs > now, "it waits after its deadline");
        }

        private void finish() {
            beginToFinish();
            for (int i = 0; i < 2000 && !isOver(); i++) {
                goOn();
                pass(MS);
            }
            pass(10_000 * MS);
            checkEnd();
        }

        void beginToFinish() {
            command(
                    () -> {
                        for (int group = 0; group < 3; group++) {
                            weigh(group, RequestClass.STRICT, 1000);
                            weigh(group, RequestClass.BEST_EFFORT, 1000);
                        }
                    });
            final FakeWorker last = new FakeWorker(group(0), 4);
            final List<FakeWorker> old = current;
            current = new ArrayList<>(List.of(last));
            workers.add(last);
            dispatcher.setWorkers(current);
            old.forEach(FakeWorker::drain);
        }

        void goOn() {
            for (final FakeWorker worker : List.copyOf(workers)) {
                goOn(worker);
            }
        }

        void checkEnd() {
            assertTrue(dispatcher.isIdle(), () -> dispatcher.waiting() + " requests wait for ever");
            checkAnswers();
            assertEquals(0, slot.get(ControlLayout.S_IN_FLIGHT_REQUESTS));
            assertEquals(0, slot.get(ControlLayout.S_IN_FLIGHT_BATCHES));
            assertEquals(0, page.get(ControlLayout.HEADER_SIZE + ControlLayout.K_HOLD_NUMBER));
            assertEquals(List.of(), pinned());
            final List<Object> known =
                    Reachable.from(dispatcher, object -> object instanceof BatchWorker);
            assertEquals(current, known, "workers that ended are kept");
        }

        boolean isOver() {
            return dispatcher.isIdle() && workers.stream().allMatch(w -> w.inFlight.isEmpty());
        }

        private void goOn(final FakeWorker worker) {
            worker.faults = 0;
            worker.unencodable = 0;
            worker.canWrite = true;
            if (worker.state == WorkerState.BACKOFF) {
                worker.comeBack();
            }
            worker.flush();
            if (!worker.inFlight.isEmpty()) {
                worker.answer();
            }
        }

        private long counted(final int offset) {
            long sum = 0;
            for (final RequestClass requestClass : RequestClass.all()) {
                sum += slot.get(ModelSlot.of(offset, requestClass));
            }
            return sum;
        }

        private void checkAnswers() {
            assertEquals(
                    counted(ControlLayout.S_ARRIVALS),
                    counted(ControlLayout.S_ANSWERED)
                            + counted(ControlLayout.S_EXPIRED)
                            + counted(ControlLayout.S_REJECTED)
                            + counted(ControlLayout.S_FAILED)
                            + counted(ControlLayout.S_ABANDONED));
            for (final Request request : requests) {
                final int least = fate(request).abandoned ? 0 : 1;
                final int got = request.statuses.size();
                assertTrue(least <= got && got <= 1, () -> request + " got " + request.statuses);
                if (got == 1 && request.texts.get(0).contains("ended 2 workers")) {
                    assertEquals(2, fate(request).deaths, () -> request + " is blamed");
                }
                if (got == 1 && request.statuses.get(0) == 200) {
                    assertEquals(request.name, request.texts.get(0), "another's answer");
                }
            }
        }

        private void abandon(final Request request) {
            final Entry entry = entries.get(request);
            if (entry.stage == Entry.Stage.QUEUED) {
                fate(request).abandoned = true;
            }
            dispatcher.abandon(entry);
        }
    }

    /** What happened to a request. */
    private static final class Fate {
        int deaths;
        /** It must not run any more. */
        boolean isOver;
        boolean abandoned;
    }
}
