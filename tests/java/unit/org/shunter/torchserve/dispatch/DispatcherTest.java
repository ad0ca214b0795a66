package org.shunter.torchserve.dispatch;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.shunter.torchserve.dispatch.TestModel.MS;
import static org.shunter.torchserve.forming.RequestClass.BEST_EFFORT;
import static org.shunter.torchserve.forming.RequestClass.STRICT;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.shunter.torchserve.forming.Rerun;
import org.shunter.torchserve.page.ControlLayout;
import org.shunter.torchserve.page.ControlPage;
import org.shunter.torchserve.page.ModelSlot;
import org.shunter.torchserve.page.SliceSet;
import org.shunter.torchserve.queue.Batch;
import org.shunter.torchserve.queue.Entry;
import org.shunter.torchserve.queue.Loss;
import org.shunter.torchserve.queue.Recent;
import org.shunter.torchserve.queue.Reply;
import org.shunter.torchserve.queue.WorkerState;

/** One event after the other, with a worker or two. */
class DispatcherTest {
    private final TestModel model = new TestModel(100, 0);

    /** Requests that wait while a worker is busy with one that has the name "held". */
    private TestModel.FakeWorker busy(final int cap) {
        final TestModel.FakeWorker worker = model.serve(cap)[0];
        model.command(() -> model.slot.set(ControlLayout.S_AHEAD_BATCHES, 0));
        model.strict("held");
        return worker;
    }

    private static void end(final TestModel.FakeWorker worker) {
        while (!worker.inFlight.isEmpty()) {
            worker.answer();
        }
    }

    @Test
    void requestsThatWaitShareABatchAndEachGetsItsOwnAnswer() {
        final TestModel.FakeWorker worker = busy(4);
        final List<TestModel.Request> requests = new ArrayList<>();
        for (final String name : List.of("a", "b", "c")) {
            requests.add(model.strict(name));
        }
        worker.answer();
        assertEquals(List.of("a", "b", "c"), worker.running());
        worker.answer();
        for (final TestModel.Request request : requests) {
            assertEquals(List.of(200), request.statuses);
            assertEquals(List.of(request.name), request.texts);
        }
        assertEquals(List.of(), model.pinned());
    }

    @Test
    void aRequestWithoutAnIdIsAnsweredLikeTheOthers() {
        final TestModel.FakeWorker worker = busy(4);
        final TestModel.Request[] requests = {
            new TestModel.Request("a", "a"),
            new TestModel.Request("none", null),
            new TestModel.Request("also none", null)
        };
        for (final TestModel.Request request : requests) {
            model.offer(request, STRICT, 0, Rerun.AFTER_DEATH);
        }
        worker.answer();
        worker.answer();
        for (final TestModel.Request request : requests) {
            assertEquals(List.of(request.name), request.texts);
        }
    }

    @Test
    void aFaultInADecisionCostsNoAnswer() {
        final TestModel.FakeWorker worker = busy(4);
        final TestModel.Request waits = model.strict("waits");
        worker.answer();
        final TestModel.FakeWorker broken =
                model.new FakeWorker(model.group(0), 4) {
                    @Override
                    public int cap() {
                        throw new IllegalStateException("told to fail");
                    }
                };
        model.dispatcher.setWorkers(List.of(worker, broken));
        final TestModel.Request late = model.strict("late");
        worker.answer();
        assertEquals(List.of(200), waits.statuses);
        model.dispatcher.setWorkers(List.of(worker));
        end(worker);
        assertEquals(List.of(200), late.statuses);
    }

    @Test
    void strictGoesBeforeBestEffortThatSawADeath() {
        final TestModel.FakeWorker worker = model.serve(8)[0];
        model.command(() -> model.slot.set(ControlLayout.S_AHEAD_BATCHES, 0));
        model.bestEffort("held");
        final List<TestModel.Request> crashed = new ArrayList<>();
        for (int i = 0; i < 4; i++) {
            crashed.add(model.bestEffort("b" + i));
        }
        worker.answer();
        assertEquals(4, worker.running().size());
        worker.die();
        model.strict("s");
        worker.comeBack();
        assertEquals(List.of("s"), worker.running());
        worker.answer();
        for (int i = 0; i < 4; i++) {
            assertEquals(List.of("b" + i), worker.running());
            worker.answer();
        }
        crashed.forEach(request -> assertEquals(List.of(200), request.statuses));
    }

    @Test
    void strictDoesNotStarveWhereBestEffortTakesLongerThanTheAgeingTime() {
        final TestModel.FakeWorker worker = model.serve(1)[0];
        model.command(() -> model.slot.set(ControlLayout.S_AHEAD_BATCHES, 0));
        model.bestEffort("b0");
        final StringBuilder order = new StringBuilder();
        for (int i = 1; i < 13; i++) {
            final String first = worker.running().get(0);
            order.append(first, 0, 1);
            model.now += first.startsWith("b") ? 1_500_000_000L : 300_000_000L;
            model.bestEffort("b" + i); // more than can be served
            model.strict("s" + i);
            worker.answer();
        }
        // Each best-effort batch is followed by all of strict that fits into the ageing time.
        assertEquals("bssssbssssbs", order.toString());
    }

    @Test
    void bestEffortThatSawADeathDoesNotStarveBehindStrict() {
        final TestModel.FakeWorker worker = model.serve(1)[0];
        model.bestEffort("b");
        worker.die();
        model.strict("s0");
        model.strict("s1");
        worker.comeBack();
        final List<String> ran = new ArrayList<>();
        for (int i = 2; i < 30 && !ran.contains("b"); i++) {
            ran.addAll(worker.running());
            model.strict("s" + i);
            model.pass(100 * MS);
            worker.answer();
        }
        assertTrue(ran.contains("b"), ran.toString());
    }

    @Test
    void aBatchThatWasNeverWrittenIsNotBlamedForADeath() {
        final TestModel.FakeWorker worker = model.serve(4)[0];
        for (int death = 0; death < 3; death++) {
            worker.canWrite = false;
            if (death == 0) {
                model.strict("a");
            }
            assertEquals(List.of("a"), worker.running());
            worker.die();
            worker.comeBack();
        }
        worker.canWrite = true;
        worker.flush();
        worker.answer();
        assertEquals(List.of(200), model.requests.get(0).statuses);
    }

    @Test
    void aBatchThatCannotBeEncodedIsTriedApartAndItsWorkerLives() {
        final TestModel.FakeWorker worker = busy(4);
        model.strict("a");
        model.strict("bad");
        model.strict("b");
        worker.unencodable = 1;
        worker.answer();
        assertEquals(List.of("a"), worker.running());
        worker.unencodable = 1;
        worker.answer();
        assertEquals(List.of("b"), worker.running());
        end(worker);
        final List<Integer> found = new ArrayList<>();
        model.requests.forEach(request -> found.addAll(request.statuses));
        assertEquals(List.of(200, 200, 500, 200), found);
        assertEquals(WorkerState.READY, worker.state);
        assertTrue(model.dispatcher.isIdle());
    }

    @ParameterizedTest
    @CsvSource({
        "AFTER_DEATH, DIED, true",
        "AFTER_DEATH, TIMED_OUT, false",
        "AFTER_DEATH, STOPPED, true",
        "NEVER, DIED, false",
        "NEVER, TIMED_OUT, false",
        "NEVER, STOPPED, false",
        "ALWAYS, DIED, true",
        "ALWAYS, TIMED_OUT, true",
        "ALWAYS, STOPPED, true",
        "NEVER, UNBEGUN, true",
        "AFTER_DEATH, UNBEGUN, true"
    })
    void whatRanRunsAgainOnlyIfItMay(
            final Rerun rerun, final Loss.Kind kind, final boolean again) {
        final TestModel.FakeWorker[] workers = model.serve(1, 1);
        model.strict("other");
        final TestModel.Request request =
                model.offer(new TestModel.Request("r", "r"), STRICT, 0, rerun);
        final TestModel.FakeWorker ran =
                workers[0].running().contains("r") ? workers[0] : workers[1];
        final TestModel.FakeWorker other = ran == workers[0] ? workers[1] : workers[0];
        if (kind == Loss.Kind.STOPPED) {
            ran.end();
        } else {
            ran.lose(new Loss(kind, 507, "told to"));
        }
        other.answer();
        assertEquals(again ? List.of("r") : List.of(), other.running());
        if (again) {
            final boolean died = kind == Loss.Kind.DIED || kind == Loss.Kind.TIMED_OUT;
            assertEquals(died ? 1 : 0, model.entries.get(request).deaths);
            other.answer();
            assertEquals(List.of(200), request.statuses);
        } else {
            assertEquals(List.of(kind == Loss.Kind.STOPPED ? 500 : 413), request.statuses);
        }
    }

    /** Another process holds slice 0 all the time, and for a moment the worker's slice 1, too. */
    @ParameterizedTest
    @CsvSource({"7, 0", "5, 1"})
    void aBatchThatMayHaveStoodStillTeachesNoLatency(final long number, final long learnt) {
        final int line = ControlLayout.HEADER_SIZE + ControlLayout.HOLDER_SIZE;
        model.page.set(line + ControlLayout.K_HOLDER_PID, 1);
        model.page.set(line + ControlLayout.K_HOLDER_HEARTBEAT_NS, model.now);
        model.page.set(line + ControlLayout.K_HOLD_SINCE_NS, model.now - MS);
        model.page.set(line + ControlLayout.K_HOLD_SLICES, 0b01);
        model.page.set(line + ControlLayout.K_HOLD_NUMBER, 5);
        final TestModel.FakeWorker worker = model.yielding(SliceSet.of(0b10));
        model.dispatcher.setWorkers(List.of(worker));
        model.bestEffort("b");
        model.pass(10 * MS);
        model.page.set(line + ControlLayout.K_HOLD_NUMBER, number);
        worker.answer();
        assertEquals(learnt, worker.group.fit.batches());
    }

    @Test
    void anAnswerAtTheLimitSavesTheBatchBehindIt() {
        final TestModel.FakeWorker worker = model.serve(1)[0];
        final TestModel.Request late = model.strict("late");
        final TestModel.Request next = model.strict("next");
        final long begunNs = model.now;
        model.pass(1000 * MS);
        worker.answer();
        final Loss loss = Loss.timedOut("told to");
        assertNull(model.dispatcher.giveUpOverdue(List.of(worker), begunNs + 1, loss));
        worker.answer();
        assertEquals(List.of(200), late.statuses);
        assertEquals(List.of(200), next.statuses);
    }

    @Test
    void anAnswerAfterItsTimeOutIsNotTakenForTheNextBatchNorForAFault() {
        final TestModel.FakeWorker worker = model.serve(1)[0];
        final TestModel.Request late = model.strict("late");
        final TestModel.Request next = model.strict("next");
        final Loss loss = Loss.timedOut("told to");
        assertSame(worker, model.dispatcher.giveUpOverdue(List.of(worker), model.now + 1, loss));
        assertEquals(WorkerState.BACKOFF, worker.state);
        assertFalse(model.dispatcher.onReply(worker, new Reply(200, "", List.of())));
        assertEquals(List.of(500), late.statuses);
        worker.comeBack();
        assertEquals(List.of("next"), worker.running());
        worker.answer();
        assertEquals(List.of(200), next.statuses);
    }

    @Test
    void aRequestThatEndedTwoWorkersIsAnsweredEvenIfItIsIdempotent() {
        final TestModel.FakeWorker worker = model.serve(1)[0];
        final TestModel.Request poison =
                model.offer(new TestModel.Request("p", "p"), STRICT, 0, Rerun.ALWAYS);
        worker.die();
        worker.comeBack();
        worker.die();
        assertEquals(List.of(500), poison.statuses);
        assertTrue(poison.texts.get(0).contains("ended 2 workers"), poison.texts.toString());
    }

    @Test
    void aClassThatTheCommandsTakeFromAllWorkersIsAnsweredAndTakenAgain() {
        final TestModel.FakeWorker worker = busy(4);
        final TestModel.Request waits = model.bestEffort("waits");
        model.command(() -> model.weigh(0, BEST_EFFORT, 0));
        model.dispatcher.refresh();
        assertEquals(List.of(503), waits.statuses);
        assertEquals(List.of(503), model.bestEffort("refused").statuses);
        model.command(() -> model.weigh(0, BEST_EFFORT, 1000));
        final TestModel.Request taken = model.bestEffort("taken");
        end(worker);
        assertEquals(List.of(200), taken.statuses);
    }

    @Test
    void whatIsCommandedCountsForTheNextRequest() {
        model.serve(4);
        model.command(() -> model.weigh(0, STRICT, 0));
        assertEquals(List.of(503), model.strict("refused").statuses);
    }

    /** With strict requests about, a best-effort batch adds at most what a lone request takes. */
    @ParameterizedTest
    @CsvSource({"4, 1, 64, 5", "1, 1, 64, 2", "0, 1, 64, 1", "9, 1, 4, 4", "3, 0, 64, 12", "0, 0, 64, 12"})
    void withoutAnSloBestEffortAddsWhatALoneRequestTakes(
            final int fixedMs, final int eachMs, final int cap, final int given) {
        final TestModel.FakeWorker worker = busy(cap);
        model.command(
                () -> {
                    model.slot.set(ControlLayout.S_LATENCY_FIXED_NS, fixedMs * MS);
                    model.slot.set(ControlLayout.S_LATENCY_PER_REQUEST_NS, eachMs * MS);
                });
        for (int i = 0; i < 12; i++) {
            model.bestEffort("b" + i);
        }
        worker.answer();
        assertEquals(given, worker.running().size());
    }

    /** Where classes are mixed it does not add more either. */
    @Test
    void aStrictBatchIsFilledWithNoMoreBestEffortThanRunsByItself() {
        final TestModel.FakeWorker worker = busy(16);
        model.command(
                () -> {
                    model.slot.set(ControlLayout.S_MIX_CLASSES, 1);
                    model.slot.set(ControlLayout.S_LATENCY_FIXED_NS, 4 * MS);
                    model.slot.set(ControlLayout.S_LATENCY_PER_REQUEST_NS, MS);
                });
        model.strict("s");
        for (int i = 0; i < 12; i++) {
            model.bestEffort("b" + i);
        }
        worker.answer();
        assertEquals(5, worker.running().size());
        assertEquals("s", worker.running().get(0));
    }

    @Test
    void aFaultWhileALostWorkersBatchesAreTakenBackKeepsItFromNothing() {
        final TestModel.FakeWorker worker = model.serve(1)[0];
        final TestModel.Request broken = new TestModel.Request("broken", "broken");
        model.offer(broken, STRICT, 0, Rerun.NEVER);
        final TestModel.Request next = model.strict("next");
        assertEquals(2, worker.inFlight.size());
        broken.isBroken = true;
        assertTrue(worker.die(), "who restarts it does not hear of it");
        assertEquals(0, worker.held);
        worker.comeBack();
        end(worker);
        assertEquals(List.of(200), next.statuses);
    }

    @Test
    void noTimerKeepsAModelThatIsGone() {
        final TestModel.Request waits = new TestModel.Request("waits", "waits");
        model.serve(1)[0].state = WorkerState.STARTING;
        model.offer(waits, STRICT, 24 * 3_600_000 * MS, Rerun.AFTER_DEATH);
        assertTrue(model.willRing());
        model.dispatcher.setWorkers(List.of());
        model.dispatcher.failWaiting(503, "removed");
        model.dispatcher.detach(model.page);
        assertFalse(model.willRing());
    }

    @Test
    void aSlotIsGivenBackWhateverFailsBefore() {
        final TestModel.FakeWorker worker = model.serve(1)[0];
        model.strict("runs");
        final ControlPage page = model.page;
        for (int i = 1; i < ControlLayout.SLOT_COUNT; i++) {
            page.claim();
        }
        assertEquals(-1, page.claim().index());
        model.clockFails = true;
        assertThrows(IllegalStateException.class, () -> model.dispatcher.detach(page));
        model.clockFails = false;
        assertEquals(0, page.claim().index());
        worker.answer();
    }

    /** However long ago its batch should have ended. */
    @Test
    void aWorkerThatIsOverdueIsNotTakenForAFreeOne() {
        model.serve(1);
        model.command(
                () -> {
                    model.slot.set(ControlLayout.S_ADMISSION, 1);
                    model.slot.set(ControlLayout.S_LATENCY_FIXED_NS, 500 * MS);
                });
        model.strict("runs");
        model.pass(600 * MS);
        final TestModel.Request late = new TestModel.Request("s", "s");
        model.offer(late, STRICT, 350 * MS, Rerun.AFTER_DEATH);
        assertEquals(List.of(429), late.statuses);
    }

    /** Two workers; one has just begun or is in the middle of a batch when the other is free. */
    @ParameterizedTest
    @CsvSource({
        "0, 1, 30, 0, 2, 2", // fixed ms, each ms, the other's batch, ms since it began, waiting, given
        "0, 1, 10, 0, 20, 15",
        "0, 1, 10, 6, 20, 12",
        "10, 1, 10, 0, 20, 20", // another batch would end later than the whole
        "10, 1, 10, 10, 20, 15",
        "10, 1, 10, 25, 20, 20", // which is late: it may hang
    })
    void whatWaitsIsLeftToAWorkerThatIsSoonFreeSoThatAllEndTogether(
            final int fixedMs,
            final int eachMs,
            final int other,
            final int sinceMs,
            final int waiting,
            final int given) {
        final TestModel.FakeWorker[] workers = model.serve(64, 64);
        model.command(
                () -> {
                    model.slot.set(ControlLayout.S_AHEAD_BATCHES, 0);
                    model.slot.set(ControlLayout.S_THRESHOLD_FIXED_MILLI, 0); // adapts
                    model.slot.set(ControlLayout.S_LATENCY_FIXED_NS, fixedMs * MS);
                    model.slot.set(ControlLayout.S_LATENCY_PER_REQUEST_NS, eachMs * MS);
                });
        model.strict("held");
        model.strict("held too");
        model.pass(30 * MS); // both are late: nothing is left to them
        for (int i = 0; i < other; i++) {
            model.strict("a" + i);
        }
        workers[1].answer();
        assertEquals(other, workers[1].running().size());
        for (int i = 0; i < waiting; i++) {
            model.strict("b" + i);
        }
        model.pass(sinceMs * MS);
        workers[0].answer();
        assertEquals(given, workers[0].running().size());
        workers[1].answer();
        assertEquals(waiting - given, workers[1].running().size());
    }

    /** The rest would be held back a second time, beside a worker that is free. */
    @Test
    void aFullBatchThatWasWaitedForIsNotShared() {
        final TestModel.FakeWorker[] workers = model.serve(8, 8);
        model.command(
                () -> {
                    model.slot.set(ControlLayout.S_AHEAD_BATCHES, 0);
                    model.slot.set(ControlLayout.S_LATENCY_FIXED_NS, 10 * MS);
                    model.slot.set(ControlLayout.S_LATENCY_PER_REQUEST_NS, MS);
                });
        model.strict("held");
        model.strict("held too");
        model.pass(30 * MS);
        for (int i = 0; i < 3; i++) {
            model.strict("a" + i);
        }
        workers[1].answer();
        assertEquals(3, workers[1].running().size());
        model.command(() -> model.slot.set(ControlLayout.S_THRESHOLD_FIXED_MILLI, 8000));
        for (int i = 0; i < 8; i++) {
            model.strict("b" + i);
        }
        model.pass(12 * MS);
        workers[0].answer();
        assertEquals(8, workers[0].running().size());
    }

    /** Else a model whose batches take longer than a strict request may would never answer one. */
    @ParameterizedTest
    @CsvSource({"10, 5", "0, 16"})
    void strictRequestsThatLongBatchesMakeTooLateShortenTheNextOne(
            final int deadlineMs, final int given) {
        final TestModel.FakeWorker worker = model.serve(16)[0];
        model.command(
                () -> {
                    model.slot.set(ControlLayout.S_AHEAD_BATCHES, 0);
                    model.slot.set(ControlLayout.S_LATENCY_FIXED_NS, 4 * MS);
                    model.slot.set(ControlLayout.S_LATENCY_PER_REQUEST_NS, MS);
                });
        for (int i = 0; i < 33; i++) {
            model.bestEffort("b" + i);
        }
        worker.answer();
        assertEquals(16, worker.running().size());
        if (deadlineMs > 0) {
            final TestModel.Request late = new TestModel.Request("s", "s");
            model.offer(late, STRICT, deadlineMs * MS, Rerun.AFTER_DEATH);
            assertEquals(List.of(504), late.statuses);
        }
        worker.answer();
        assertEquals(given, worker.running().size());
    }

    /** A worker of four requests in each group; of best effort the controller gave each a part. */
    private TestModel.FakeWorker[] shared(final int[] preferences, final int[] weights) {
        final TestModel.FakeWorker[] workers = new TestModel.FakeWorker[preferences.length];
        for (int group = 0; group < workers.length; group++) {
            workers[group] = model.new FakeWorker(model.group(group), 4);
        }
        model.command(
                () -> {
                    for (int group = 0; group < workers.length; group++) {
                        final int offset = ModelSlot.of(ControlLayout.S_PREFERENCE, BEST_EFFORT);
                        model.slot.set(ModelSlot.ofGroup(offset, group), preferences[group]);
                        model.weigh(group, BEST_EFFORT, weights[group]);
                    }
                });
        return workers;
    }

    @ParameterizedTest
    @CsvSource({
        // Groups of one preference share what waits, by their weights.
        "8, 0 0, 1000 1000, 4 4",
        "6, 0 0, 1000 500, 4 2",
        "8, 0 0, 1000 250, 4 1",
        "2, 0 0, 1000 1000, 1 1",
        // A lower number goes first, and the next one gets what is left.
        "4, 1 0, 1000 1000, 0 4",
        "4, 0 1, 1000 1000, 4 0",
        "5, 1 0, 1000 1000, 1 4",
        // The last resort takes one at a time, and is not left out.
        "8, 1 0, 1 1000, 1 4",
        "3, 1 0, 1 1000, 0 3",
    })
    void groupsGetThePartThatTheControllerSays(
            final int requests, final String preferences, final String weights, final String sizes) {
        final TestModel.FakeWorker before = busy(1);
        for (int i = 0; i < requests; i++) {
            model.bestEffort("b" + i);
        }
        final TestModel.FakeWorker[] workers = shared(numbers(preferences), numbers(weights));
        model.dispatcher.setWorkers(List.of(workers));
        before.drain();
        end(before);
        final int[] found = new int[workers.length];
        for (int i = 0; i < found.length; i++) {
            found[i] = workers[i].running().size();
        }
        assertArrayEquals(numbers(sizes), found);
        for (int round = 0; round < requests; round++) {
            for (final TestModel.FakeWorker worker : workers) {
                end(worker);
            }
        }
        model.requests.forEach(request -> assertEquals(List.of(200), request.statuses));
    }

    private static int[] numbers(final String text) {
        return Stream.of(text.split(" ")).mapToInt(Integer::parseInt).toArray();
    }

    @Test
    void nobodyKeepsTheBodiesOfClientsThatLeft() {
        final TestModel.FakeWorker worker = busy(1);
        for (int i = 0; i < 20; i++) {
            final TestModel.Request request = model.strict("r" + i);
            model.dispatcher.abandon(model.entries.get(request));
        }
        worker.answer();
        assertEquals(0, model.dispatcher.waiting());
        assertEquals(List.of(), model.pinned());
    }

    @Test
    void aStreamedAnswerThatBeganIsNotRepeated() {
        final TestModel.FakeWorker worker = model.serve(1)[0];
        final TestModel.Request request =
                model.offer(new TestModel.Request("s", "s"), STRICT, 0, Rerun.ALWAYS);
        worker.answerPart();
        worker.die();
        assertEquals(1, request.statuses.size());
        worker.comeBack();
        assertEquals(List.of(), worker.running());
    }

    @Test
    void answersThatAreMissingOrOutOfOrderAreFoundByTheirIds() {
        final TestModel.FakeWorker worker = busy(4);
        model.strict("a");
        model.strict("b");
        worker.answer();
        model.dispatcher.onReply(
                worker,
                new Reply(
                        200,
                        "",
                        List.of(
                                new Reply.Prediction(
                                        "b", "", 200, "OK", Map.of(), "for b".getBytes()))));
        assertEquals(List.of(500), model.requests.get(1).statuses);
        assertEquals(List.of("for b"), model.requests.get(2).texts);
    }

    private static final int WAIT_MS = 10_000;

    private static TestModel withCompany() {
        return new TestModel(new Dispatcher.Limits(100, WAIT_MS * 1000L, 0, true));
    }

    @Test
    void withCompanyAFreeWorkerWaitsForAFullBatch() {
        final TestModel model = withCompany();
        final TestModel.FakeWorker[] workers = model.serve(2, 2);
        model.strict("a");
        model.pass(100 * MS);
        assertEquals(List.of(), workers[0].running());
        model.strict("b");
        assertEquals(List.of("a", "b"), workers[0].running());
        assertEquals(List.of(), workers[1].running());
        for (final String name : List.of("c", "d", "e")) {
            model.strict(name);
        }
        assertEquals(List.of("c", "d"), workers[1].running());
        assertEquals(1, model.dispatcher.waiting());
    }

    @Test
    void withCompanyNobodyWaitsForLongerThanTheRegisteredDelay() {
        final TestModel model = withCompany();
        final TestModel.FakeWorker[] workers = model.serve(4, 4);
        model.strict("a");
        model.pass((WAIT_MS - 1) * MS);
        model.strict("b");
        assertEquals(List.of(), workers[0].running());
        model.pass(MS);
        assertEquals(List.of("a", "b"), workers[0].running());
        assertEquals(List.of(), workers[1].running());
    }

    @Test
    void withCompanyADeadlineIsStillMet() {
        final TestModel model = withCompany();
        final TestModel.FakeWorker worker = model.serve(4)[0];
        model.offer(new TestModel.Request("a", "a"), STRICT, 50 * MS, Rerun.AFTER_DEATH);
        model.pass(47 * MS);
        assertEquals(List.of(), worker.running());
        model.pass(2 * MS);
        assertEquals(List.of("a"), worker.running());
    }

    /** A worker that runs "held" and has the other requests in a batch behind it. */
    private TestModel.FakeWorker behindHeld(final TestModel.Request... others) {
        final TestModel.FakeWorker worker = model.serve(4)[0];
        model.command(() -> model.slot.set(ControlLayout.S_THRESHOLD_FIXED_MILLI, 1000 * others.length));
        model.strict("held");
        for (final TestModel.Request each : others) {
            model.offer(each, STRICT, each.name.equals("patient") ? 0 : 100 * MS, Rerun.ALWAYS);
        }
        assertEquals(others.length, worker.inFlight.peekLast().size());
        assertEquals(2, worker.inFlight.size());
        return worker;
    }

    private long counted(final int offset) {
        return model.slot.get(ModelSlot.of(offset, STRICT));
    }

    @Test
    void whatIsBehindAHangingBatchIsToldWhenItsDeadlinePasses() {
        final TestModel.Request hasty = new TestModel.Request("hasty", "hasty");
        final TestModel.FakeWorker worker = behindHeld(hasty);
        model.pass(99 * MS);
        assertEquals(List.of(), hasty.statuses);
        model.pass(2 * MS);
        assertEquals(List.of(504), hasty.statuses);
        assertEquals(1, counted(ControlLayout.S_EXPIRED));
        assertEquals(1, model.slot.get(ControlLayout.S_IN_FLIGHT_REQUESTS));
        worker.answer();
        assertFalse(model.dispatcher.isIdle());
        worker.answer();
        assertEquals(List.of(504), hasty.statuses);
        assertEquals(1, counted(ControlLayout.S_EXPIRED));
        assertEquals(1, counted(ControlLayout.S_ANSWERED));
        assertTrue(model.dispatcher.isIdle());
        assertEquals(List.of(), model.pinned());
    }

    @ParameterizedTest
    @CsvSource({"false", "true"})
    void whatExpiredBehindALostBatchIsNotRunAgain(final boolean begun) {
        final TestModel.Request hasty = new TestModel.Request("hasty", "hasty");
        final TestModel.FakeWorker worker = behindHeld(hasty);
        model.pass(101 * MS);
        if (begun) {
            worker.answer();
        }
        worker.die();
        worker.comeBack();
        assertEquals(begun ? List.of() : List.of("held"), worker.running());
        end(worker);
        assertEquals(List.of(504), hasty.statuses);
        assertEquals(0, counted(ControlLayout.S_FAILED));
        assertTrue(model.dispatcher.isIdle());
    }

    @ParameterizedTest
    @CsvSource({"answered", "failed", "without an answer", "unencodable"})
    void whatHasNoDeadlineIsAnsweredBesideWhatExpired(final String end) {
        final TestModel.Request hasty = new TestModel.Request("hasty", "hasty");
        final TestModel.Request patient = new TestModel.Request("patient", "patient");
        final TestModel.FakeWorker worker = behindHeld(hasty, patient);
        final Batch behind = worker.inFlight.peekLast();
        model.pass(101 * MS);
        assertEquals(List.of(504), hasty.statuses);
        assertEquals(List.of(), patient.statuses);
        worker.answer();
        switch (end) {
            case "failed" -> worker.fail(500);
            case "without an answer" -> model.dispatcher.onReply(worker, new Reply(200, "", List.of()));
            case "unencodable" -> model.dispatcher.onUnsent(worker, behind, 500, "not encoded");
            default -> worker.answer();
        }
        end(worker);
        assertEquals(List.of(504), hasty.statuses);
        final boolean isAnswered = end.equals("answered") || end.equals("unencodable");
        assertEquals(List.of(isAnswered ? 200 : 500), patient.statuses);
        assertTrue(model.dispatcher.isIdle());
        if (end.equals("unencodable")) { // its body is free; else it is when the reply was delivered
            assertEquals(Entry.Stage.DONE, model.entries.get(hasty).stage);
        }
    }

    /** Predicted: 1 ms, and a margin of 2 ms. */
    @ParameterizedTest
    @CsvSource({"2, 2", "4, 1"})
    void nothingIsSentAheadToAWorkerThatTakesLongerThanItShould(
            final int passedMs, final int batches) {
        final TestModel.FakeWorker worker = model.serve(4)[0];
        model.command(() -> model.slot.set(ControlLayout.S_LATENCY_FIXED_NS, MS));
        model.strict("held");
        model.pass(passedMs * MS);
        model.strict("next");
        assertEquals(batches, worker.inFlight.size());
        end(worker);
        assertEquals(List.of(200), model.requests.get(1).statuses);
    }

    @ParameterizedTest
    @CsvSource({"DIED, 1", "STOPPED, 1", "UNBEGUN, 0"})
    void onlyWhatRanIsCountedAsRunAgain(final Loss.Kind kind, final int again) {
        final TestModel.Request behind = new TestModel.Request("patient", "patient");
        final TestModel.FakeWorker worker = behindHeld(behind);
        worker.lose(new Loss(kind, 500, "told to"));
        assertEquals(again, model.slot.get(ControlLayout.S_RETRIED));
        assertEquals(2, model.dispatcher.waiting());
        worker.comeBack();
        end(worker);
        model.requests.forEach(request -> assertEquals(List.of(200), request.statuses));
    }

    @Test
    void ofWhatRanOnALostWorkerItIsKnownForHowLong() {
        final TestModel.FakeWorker worker = model.serve(4)[0];
        model.strict("held");
        final long begunNs = model.now;
        model.pass(60_000 * MS);
        worker.lose(Loss.timedOut("told to"));
        final Recent.Line line = model.dispatcher.telemetry().recent().get(0);
        assertEquals(List.of(begunNs, 1L, 0L), List.of(line.startNs(), (long) line.batch(), (long) line.group()));
        assertEquals(500, line.status());
    }
}
