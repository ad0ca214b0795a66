package org.shunter.torchserve.dispatch;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.shunter.torchserve.dispatch.TestModel.MS;
import static org.shunter.torchserve.forming.RequestClass.STRICT;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.shunter.torchserve.forming.RequestClass;
import org.shunter.torchserve.forming.Rerun;
import org.shunter.torchserve.page.ControlLayout;
import org.shunter.torchserve.page.ControlPage;
import org.shunter.torchserve.preemption.Hold;
import org.shunter.torchserve.preemption.PoolRoom;
import org.shunter.torchserve.preemption.Turns;
import org.shunter.torchserve.queue.Batch;
import org.shunter.torchserve.queue.Loss;

/** Models that share one process, with a worker each. */
class PoolSharingTest {
    private final PoolRoom room = new PoolRoom(0);
    private final PoolRoom second = new PoolRoom(1);
    private final ControlPage page =
            new ControlPage(ByteBuffer.allocateDirect(ControlLayout.PAGE_SIZE));
    private final Hold hold = new Hold(page);
    private final Turns turns = new Turns(page);
    private final List<Model> models = new ArrayList<>();

    private final class Model extends TestModel {
        final List<Batch> given = new ArrayList<>();
        final FakeWorker worker;

        Model() {
            super(new Dispatcher.Limits(100, 0, 0, false), PoolSharingTest.this.page, hold, turns);
            worker = serve(8)[0];
            models.add(this);
        }

        @Override
        PoolRoom room() {
            return room;
        }

        @Override
        void onGiven(final FakeWorker to, final Batch batch) {
            given.add(batch);
        }
    }

    private final Model a = new Model();
    private final Model b = new Model();
    private final Model c = new Model();

    /** A model with a worker in each of two processes. */
    private final class Wide extends TestModel {
        final FakeWorker[] workers;
        private final List<PoolRoom> rooms;
        private int made;

        Wide(final long fixedMs) {
            this(fixedMs, room, second);
        }

        Wide(final long fixedMs, final PoolRoom... rooms) {
            super(new Dispatcher.Limits(100, 0, 0, false), PoolSharingTest.this.page, hold, turns);
            this.rooms = List.of(rooms);
            workers = serve(8, 8);
            command(
                    () -> {
                        slot.set(ControlLayout.S_LATENCY_FIXED_NS, fixedMs * MS);
                        slot.set(ControlLayout.S_LATENCY_PER_REQUEST_NS, MS);
                    });
        }

        @Override
        PoolRoom room() {
            return rooms.get(made++);
        }

        List<Integer> sizes() {
            return Stream.of(workers).map(worker -> worker.running().size()).toList();
        }
    }

    @Test
    void aBatchGoesWhereTheLeastIsBeforeIt() {
        final Wide slow = new Wide(100);
        final Wide quick = new Wide(10);
        final Wide next = new Wide(10);
        slow.strict("slow");
        quick.strict("quick");
        assertEquals(List.of(List.of(1, 0), List.of(0, 1)), List.of(slow.sizes(), quick.sizes()));
        next.strict("next");
        assertEquals(List.of(0, 1), next.sizes());
    }

    @ParameterizedTest
    @CsvSource({"100, true, 8", "101, true, 0", "101, false, 8"})
    void whoFloodsThePoolLeavesAProcessToTheOthers(
            final int requests, final boolean othersAsk, final int other) {
        final Wide flooded = new Wide(4);
        final Wide quiet = new Wide(4);
        if (othersAsk) {
            quiet.strict("q");
            quiet.workers[0].answer();
        }
        for (final TestModel.FakeWorker worker : flooded.workers) {
            worker.die();
        }
        for (int i = 0; i < requests; i++) {
            flooded.strict("f" + i);
        }
        flooded.workers[0].comeBack();
        flooded.workers[1].comeBack();
        flooded.workers[0].answer(); // it was short: there was no other worker then
        assertEquals(List.of(8, other), flooded.sizes());
        quiet.strict("q2");
        assertEquals(other == 0 ? List.of(0, 1) : List.of(1, 0), quiet.sizes());
    }

    @Test
    void whoFloodsThePoolTakesTheLastProcessWhenItsOwnSeemsToHang() {
        final Wide flooded = new Wide(4);
        final Wide quiet = new Wide(4);
        quiet.strict("q");
        quiet.workers[0].answer();
        for (int i = 0; i < 117; i++) {
            flooded.strict("f" + i);
        }
        flooded.workers[1].answer();
        assertEquals(List.of(1, 0), flooded.sizes());
        flooded.pass(900 * MS);
        flooded.strict("turned away");
        assertEquals(List.of(1, 0), flooded.sizes());
        flooded.pass(200 * MS);
        assertEquals(List.of(1, 8), flooded.sizes());
    }

    @Test
    void severalWorkersInOneProcessAreNoSeveralProcesses() {
        final Wide flooded = new Wide(4, room, room);
        final Wide quiet = new Wide(4);
        quiet.strict("q");
        quiet.workers[0].answer();
        for (final TestModel.FakeWorker worker : flooded.workers) {
            worker.die();
        }
        for (int i = 0; i < 101; i++) {
            flooded.strict("f" + i);
        }
        flooded.workers[0].comeBack();
        assertEquals(List.of(5, 0), flooded.sizes());
    }

    private void pass(final long ns) {
        models.forEach(model -> model.pass(ns));
    }

    @Test
    void requestsGrowIntoOneBatchWhileTheirModelWaitsForRoom() {
        a.strict("a");
        b.strict("b");
        for (final String name : List.of("c1", "c2", "c3")) {
            c.strict(name);
        }
        assertEquals(List.of(), c.given);
        assertEquals(1, c.dispatcher.waitsForRoom());
        a.worker.answer();
        assertEquals(List.of("c1", "c2", "c3"), c.worker.running());
        assertEquals(0, c.dispatcher.waitsForRoom());
    }

    @Test
    void aRequestExpiresWhileItWaitsForRoomAndHoldsNobodyUp() {
        a.strict("a");
        b.strict("b");
        final TestModel.Request late = c.offer(new TestModel.Request("c", "c"), STRICT, 5 * MS, Rerun.NEVER);
        pass(10 * MS);
        assertEquals(1, late.statuses.size());
        assertEquals(0, c.dispatcher.waitsForRoom());
        b.bestEffort("b2");
        a.worker.answer();
        b.worker.answer();
        assertEquals(List.of("b2"), b.worker.running());
    }

    /** Most of it is turned away; the others do not wait for large batches of the rest. */
    @ParameterizedTest
    @CsvSource({
        "101, 5, 9999, STRICT, STRICT",
        "100, 8, 1, STRICT, STRICT",
        "101, 8, 10000, STRICT, STRICT",
        "101, 8, 1, STRICT, BEST_EFFORT",
        "101, 5, 1, BEST_EFFORT, STRICT",
        "101, 5, 1, BEST_EFFORT, BEST_EFFORT"
    })
    void whoFloodsThePoolHasShortBatchesBesideOthers(
            final int requests,
            final int size,
            final long ms,
            final RequestClass own,
            final RequestClass others) {
        a.command(
                () -> {
                    a.slot.set(ControlLayout.S_AGEING_US, 0);
                    a.slot.set(ControlLayout.S_LATENCY_FIXED_NS, 4 * MS);
                    a.slot.set(ControlLayout.S_LATENCY_PER_REQUEST_NS, MS);
                });
        a.worker.die();
        b.offer(new TestModel.Request("b", "b"), others, 0, Rerun.NEVER);
        b.worker.answer();
        pass(ms * MS);
        for (int i = 0; i < requests; i++) {
            a.offer(new TestModel.Request("a", "a" + i), own, 0, Rerun.NEVER);
        }
        a.worker.comeBack();
        assertEquals(size, a.worker.running().size());
    }

    @ParameterizedTest
    @CsvSource({"100, 2", "101, 1"})
    void whoFloodsThePoolHasNothingAheadBesideOthers(final int requests, final int batches) {
        a.command(() -> a.slot.set(ControlLayout.S_THRESHOLD_FIXED_MILLI, 1000));
        a.worker.die();
        b.strict("b");
        b.worker.answer();
        for (int i = 0; i < requests; i++) {
            a.strict("a" + i);
        }
        a.worker.comeBack();
        a.strict("last");
        assertEquals(batches, a.worker.inFlight.size());
        b.strict("b2");
        assertEquals(batches == 1, !b.worker.inFlight.isEmpty());
    }

    @Test
    void whatALineTurnedAwayLongAgoShortensNothing() {
        a.command(
                () -> {
                    a.slot.set(ControlLayout.S_LATENCY_FIXED_NS, 4 * MS);
                    a.slot.set(ControlLayout.S_LATENCY_PER_REQUEST_NS, MS);
                });
        b.strict("b");
        b.worker.answer();
        a.worker.die();
        for (int i = 0; i < 101; i++) {
            a.strict("a" + i);
        }
        pass(1000 * MS);
        a.worker.comeBack();
        assertEquals(8, a.worker.running().size());
    }

    @Test
    void whoIsAloneGetsABatchAheadAndOthersDoNot() {
        a.command(() -> a.slot.set(ControlLayout.S_THRESHOLD_FIXED_MILLI, 1000));
        a.strict("a1");
        a.strict("a2");
        assertEquals(2, a.worker.inFlight.size());
        b.strict("b");
        assertEquals(List.of(), b.given);
        a.strict("a3");
        a.worker.answer();
        assertEquals(List.of("b"), b.worker.running());
        assertEquals(1, a.worker.inFlight.size());
        a.worker.answer();
        assertEquals(List.of("a3"), a.worker.running());
    }

    @Test
    void timeBehindABatchOfAnotherModelIsNotTheBatchsOwn() {
        final Loss loss = Loss.timedOut("told to");
        a.strict("a");
        b.strict("b");
        pass(50 * MS);
        assertNull(b.dispatcher.giveUpOverdue(List.of(b.worker), b.now - 20 * MS, loss));
        a.worker.answer();
        pass(10 * MS);
        assertNull(b.dispatcher.giveUpOverdue(List.of(b.worker), b.now - 20 * MS, loss));
        final long answeredNs = a.now - 10 * MS;
        pass(15 * MS);
        assertSame(
                b.worker, b.dispatcher.giveUpOverdue(List.of(b.worker), b.now - 20 * MS, loss));
        b.worker.comeBack();
        a.strict("a2");
        c.strict("c");
        pass(5 * MS);
        c.worker.answer();
        pass(5 * MS);
        a.worker.answer();
        final Batch second = a.given.get(1);
        assertTrue(second.startNs > answeredNs);
        assertEquals(a.now - 5 * MS, second.startNs);
    }

    @Test
    void turnsOfLongAgoHoldNobodyUp() {
        page.set(ControlLayout.H_EXCLUSIVE, 1);
        a.strict("a");
        final TestModel.Request gone = c.strict("c");
        assertEquals(List.of(), c.given);
        c.dispatcher.abandon(c.entries.get(gone));
        page.set(ControlLayout.H_EXCLUSIVE, 0);
        c.bestEffort("late");
        assertEquals(List.of("late"), c.worker.running());
    }

    @Test
    void aNewGenerationWaitsForTheOldOnesBatchInTheSameProcess() {
        a.strict("a");
        final TestModel.FakeWorker next = a.worker(8);
        a.dispatcher.setWorkers(List.of(next));
        a.worker.drain();
        a.strict("a2");
        assertEquals(List.of(), next.running());
        a.worker.answer();
        assertTrue(a.worker.ended);
        assertEquals(List.of("a2"), next.running());
        b.strict("b");
        next.die();
        c.strict("c");
        assertEquals(List.of("c"), c.worker.running());
        a.dispatcher.setWorkers(List.of());
        a.dispatcher.failWaiting(503, "removed");
        assertEquals(0, a.dispatcher.waitsForRoom());
    }
}
