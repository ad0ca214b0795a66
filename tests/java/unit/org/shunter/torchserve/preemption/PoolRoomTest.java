package org.shunter.torchserve.preemption;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.shunter.torchserve.forming.RequestClass.BEST_EFFORT;
import static org.shunter.torchserve.forming.RequestClass.STRICT;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import java.util.Random;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.shunter.torchserve.forming.RequestClass;
import org.shunter.torchserve.queue.Effects;

/** Models that share a process of the pool, without dispatchers. */
class PoolRoomTest {
    private static final int NEVER = 0;
    /** A batch is predicted to take. */
    private static final long WORK_NS = 100;

    private record Request(RequestClass requestClass, long arrivalNs) {}

    private final PoolRoom room = new PoolRoom(0);
    private final List<Model> models = new ArrayList<>();
    private final List<String> started = new ArrayList<>();
    private long now;

    /** Does what a dispatcher does, with one worker. */
    private final class Model {
        final String name;
        final long ageingNs;
        /** Its batches stand still while strict ones of others run. */
        final boolean yields;

        final RoomTaker taker;
        final List<Request> queue = new ArrayList<>();
        /** Batches of one request. */
        final List<Request> held = new ArrayList<>();

        boolean ready = true;
        /** Its requests wait for company, and take no room that they are given. */
        boolean patient;

        long servedNs = Long.MIN_VALUE / 2;
        int served;
        int decisions;
        /** Batches in the process altogether, where threads count them. */
        AtomicInteger users;

        Model(final String name, final long ageingNs) {
            this(name, ageingNs, false);
        }

        Model(final String name, final long ageingNs, final boolean yields) {
            this.name = name;
            this.ageingNs = ageingNs;
            this.yields = yields;
            this.taker = room.join(yields, () -> event(() -> {}));
            models.add(this);
        }

        void event(final Runnable change) {
            final Effects effects = new Effects();
            synchronized (this) {
                decisions++;
                change.run();
                taker.begin(held.size(), held.size() * WORK_NS, now);
                for (final RequestClass each : RequestClass.all()) {
                    if (waits(each) && mayStart(each) && mayStart(each) && !patient) {
                        start(each);
                    }
                }
                taker.settle(
                        held.size(),
                        held.size() * WORK_NS,
                        waits(STRICT),
                        waits(BEST_EFFORT),
                        now,
                        effects);
            }
            effects.run();
        }

        boolean waits(final RequestClass each) {
            return ready
                    && held.isEmpty()
                    && queue.stream().anyMatch(request -> request.requestClass == each);
        }

        /** The class that it waits with; null: it does not wait for room. */
        RequestClass waitsWith() {
            return waits(STRICT) ? STRICT : waits(BEST_EFFORT) ? BEST_EFFORT : null;
        }

        long oldestNs(final RequestClass each) {
            return queue.stream()
                    .filter(request -> request.requestClass == each)
                    .mapToLong(Request::arrivalNs)
                    .min()
                    .orElseThrow();
        }

        private boolean mayStart(final RequestClass each) {
            return taker.take("its worker", each, oldestNs(each), ageingNs, now);
        }

        private void start(final RequestClass each) {
            final Request next =
                    queue.stream().filter(r -> r.requestClass == each).findFirst().orElseThrow();
            if (users == null) {
                checkTurn(this, each);
                servedNs = now;
                served = ++count;
                started.add(name);
            } else {
                assertTrue(users.incrementAndGet() <= PoolRoom.DEPTH, "more than there is room for");
            }
            queue.remove(next);
            held.add(next);
        }

        Model offer(final RequestClass requestClass) {
            event(() -> queue.add(new Request(requestClass, now)));
            return this;
        }

        /** Its oldest batch is answered. */
        void answer() {
            event(
                    () -> {
                        if (!held.isEmpty()) {
                            servedNs = now;
                            held.remove(0);
                            taker.answered(now);
                        }
                    });
        }

        synchronized boolean runs() {
            return !held.isEmpty();
        }

        /** Its worker dies, and what it had waits again. */
        void die() {
            event(
                    () -> {
                        servedNs = held.isEmpty() ? servedNs : now;
                        queue.addAll(0, held);
                        held.clear();
                        ready = false;
                    });
        }
    }

    private int count;

    private Model model(final String name) {
        return new Model(name, NEVER);
    }

    private int taken() {
        return models.stream().mapToInt(model -> model.held.size()).sum();
    }

    /** Batches that do not stand still for strict ones. */
    private int staying() {
        return models.stream().filter(m -> !m.yields).mapToInt(model -> model.held.size()).sum();
    }

    private boolean hasRoom(final Model model, final RequestClass with) {
        return (with == STRICT && !model.yields ? staying() : taken()) < PoolRoom.DEPTH;
    }

    /** Whether somebody counts as strict; said here once more, in other words. */
    private boolean isUrgent(final Model model, final RequestClass with) {
        final long sinceNs = Math.max(model.oldestNs(with), model.servedNs);
        return with == STRICT || model.ageingNs != NEVER && now - sinceNs >= model.ageingNs;
    }

    /** Nobody starts while those before it would take all the room. */
    private void checkTurn(final Model starting, final RequestClass with) {
        final List<Model> before = new ArrayList<>();
        for (final Model other : models) {
            final RequestClass its = other.waitsWith();
            if (other != starting && its != null && !other.patient && hasRoom(other, its)) {
                final boolean urgent = isUrgent(starting, with);
                final boolean goesBefore =
                        isUrgent(other, its) == urgent
                                ? other.served < starting.served
                                : isUrgent(other, its);
                if (goesBefore) {
                    before.add(other);
                }
            }
        }
        assertTrue(
                before.size()
                        < PoolRoom.DEPTH
                                - (with == STRICT && !starting.yields ? staying() : taken()),
                () -> starting.name + " starts before " + before.stream().map(m -> m.name).toList());
    }

    private void check() {
        assertTrue(staying() <= PoolRoom.DEPTH, "more than there is room for");
        assertTrue(taken() - staying() <= PoolRoom.DEPTH, "more of best effort");
        for (final Model model : models) {
            assertTrue(
                    model.waitsWith() == null
                            || model.patient
                            || !hasRoom(model, model.waitsWith()),
                    () -> model.name + " is forgotten");
        }
    }

    @Test
    void everyProcessHasOneRoomAndAWorkerOfItsOwnHasNone() {
        final PoolRooms rooms = new PoolRooms();
        assertSame(rooms.of(2), rooms.of(2));
        assertEquals(List.of(0, 1, 2), Stream.of(0, 1, 2).map(k -> rooms.of(k).number).toList());
        assertNull(rooms.of(-1));
    }

    @Test
    void thereIsRoomForTwoAndTheThirdIsCalled() {
        final Model a = model("a").offer(STRICT);
        model("b").offer(STRICT);
        final Model c = model("c").offer(STRICT);
        assertEquals(List.of("a", "b"), started);
        assertEquals(1, c.taker.waitsFor());
        a.answer();
        assertEquals(List.of("a", "b", "c"), started);
        assertEquals(0, c.taker.waitsFor());
    }

    @Test
    void whoWasServedLongestAgoIsNextHoweverManyRequestsOthersHave() {
        final Model flooded = model("f");
        for (int i = 0; i < 20; i++) {
            flooded.offer(STRICT);
        }
        final Model a = model("a").offer(STRICT);
        final Model b = model("b").offer(STRICT);
        final Model c = model("c").offer(STRICT);
        flooded.answer();
        a.answer();
        b.answer();
        c.answer();
        flooded.answer();
        a.offer(STRICT).offer(STRICT);
        assertEquals(List.of("f", "a", "b", "c", "f", "f", "a"), started);
    }

    @Test
    void strictGoesBeforeBestEffort() {
        final Model a = model("a").offer(STRICT);
        final Model b = model("b").offer(STRICT);
        model("early").offer(BEST_EFFORT);
        final Model both = model("both").offer(BEST_EFFORT).offer(STRICT);
        a.answer();
        assertEquals(STRICT, both.held.get(0).requestClass);
        b.answer();
        assertEquals(List.of("a", "b", "both", "early"), started);
    }

    @Test
    void strictPassesWhatStandsStillForItAndNothingElse() {
        final Model low = new Model("low", NEVER, true).offer(BEST_EFFORT);
        final Model later = new Model("later", NEVER, true).offer(BEST_EFFORT);
        new Model("last", NEVER, true).offer(BEST_EFFORT);
        final Model a = model("a").offer(STRICT);
        model("b").offer(STRICT);
        model("c").offer(STRICT);
        model("stays").offer(BEST_EFFORT);
        assertEquals(List.of("low", "later", "a", "b"), started);
        a.answer();
        low.answer();
        assertEquals(List.of("low", "later", "a", "b", "c"), started);
        later.offer(STRICT); // by workers that stand still themselves
        later.answer();
        assertEquals(List.of("low", "later", "a", "b", "c"), started);
    }

    @Test
    void strictHasNoRoomBesideWhatDoesNotStandStill() {
        final Model stays = model("stays").offer(BEST_EFFORT);
        new Model("low", NEVER, true).offer(BEST_EFFORT);
        model("a").offer(STRICT);
        model("b").offer(STRICT);
        assertEquals(List.of("stays", "low", "a"), started);
        stays.answer();
        assertEquals(List.of("stays", "low", "a", "b"), started);
    }

    @Test
    void bestEffortThatWaitedForLongHasTheNextRoomAlsoWhereStrictPasses() {
        final Model low = new Model("low", 10, true);
        final Model a = model("a").offer(STRICT);
        final Model b = model("b").offer(STRICT);
        low.offer(BEST_EFFORT);
        now += 10;
        a.offer(STRICT).answer();
        assertEquals(List.of("a", "b", "low", "a"), started);
    }

    @Test
    void whatIsPassedStaysTheFirstAndWhatPassesIsBeforeWhatWaits() {
        final Model low = new Model("low", NEVER, true).offer(BEST_EFFORT);
        final Model later = new Model("later", NEVER, true).offer(BEST_EFFORT);
        final Model a = model("a").offer(STRICT);
        final Model b = model("b").offer(STRICT);
        a.answer();
        assertTrue(low.taker.isFirst());
        assertFalse(b.taker.isFirst() || later.taker.isFirst());
        low.answer();
        assertTrue(b.taker.isFirst());
        assertFalse(later.taker.isFirst());
        b.answer();
        assertTrue(later.taker.isFirst());
    }

    @Test
    void bestEffortThatWasNotServedForLongIsNotPassedByStrict() {
        final Model a = model("a");
        final Model b = model("b");
        final Model aged = new Model("aged", 10);
        for (final Model each : List.of(a, b, a, b, aged, aged, a, b, a, b)) {
            each.offer(each == aged ? BEST_EFFORT : STRICT);
        }
        a.answer();
        now += 10;
        b.answer();
        a.answer();
        aged.answer();
        assertEquals(List.of("a", "b", "a", "aged", "b", "a"), started);
    }

    @Test
    void bestEffortWhoseBatchTookLongIsUrgentSoLongAfterItAndNotAtOnce() {
        final Model aged = new Model("aged", 10).offer(BEST_EFFORT);
        final Model a = model("a").offer(STRICT).offer(STRICT).offer(STRICT);
        final Model b = model("b").offer(STRICT).offer(STRICT).offer(STRICT);
        aged.offer(BEST_EFFORT);
        now += 100;
        aged.answer();
        a.answer();
        b.answer();
        now += 10;
        a.answer();
        assertEquals(List.of("aged", "a", "b", "a", "b", "aged"), started);
    }

    @Test
    void whatIsBeforeABatchIsTheRestOfTheOneThatRunsAndAllOfTheNext() {
        final Model asks = model("asks");
        final Model a = model("a").offer(STRICT);
        assertEquals(0, a.taker.waitNs(STRICT, now));
        assertEquals(100, asks.taker.waitNs(STRICT, now));
        now += 30;
        assertEquals(70, asks.taker.waitNs(STRICT, now));
        final Model b = model("b").offer(STRICT);
        assertEquals(170, asks.taker.waitNs(STRICT, now));
        assertEquals(70, b.taker.waitNs(STRICT, now));
        now += 200; // late: it may end at once
        assertEquals(100, asks.taker.waitNs(STRICT, now));
        a.answer();
        assertEquals(100, asks.taker.waitNs(STRICT, now));
        now += 60;
        assertEquals(40, asks.taker.waitNs(STRICT, now));
        b.die();
        assertEquals(0, asks.taker.waitNs(STRICT, now));
        a.offer(STRICT);
        assertEquals(100, asks.taker.waitNs(STRICT, now));
    }

    @Test
    void whatStandsStillForStrictRequestsIsNotBeforeThem() {
        final Model asks = model("asks");
        new Model("a", NEVER, true).offer(BEST_EFFORT);
        assertEquals(0, asks.taker.waitNs(STRICT, now));
        assertEquals(100, asks.taker.waitNs(BEST_EFFORT, now));
    }

    @Test
    void whoDoesNotWaitAnyMoreHoldsNobodyUp() {
        final Model a = model("a").offer(STRICT);
        final Model b = model("b").offer(STRICT);
        final Model leaves = model("leaves").offer(STRICT);
        final Model unready = model("unready").offer(STRICT);
        final Model patient = model("patient").offer(STRICT);
        patient.patient = true;
        model("last").offer(BEST_EFFORT);
        leaves.event(leaves.queue::clear);
        unready.event(() -> unready.ready = false);
        a.answer();
        assertEquals(List.of("a", "b", "last"), started);
        b.answer();
        assertEquals(0, patient.taker.waitsFor());
    }

    @Test
    void bestEffortIsNotForgottenWhenStrictRequestsOfTheSameDecisionAreGivenUp() {
        final Model a = model("a").offer(STRICT);
        model("b").offer(STRICT);
        final Model c = model("c");
        c.queue.add(new Request(BEST_EFFORT, now));
        c.taker.begin(0, 0, now);
        assertFalse(c.taker.take("its worker", STRICT, now, NEVER, now));
        assertFalse(c.taker.take("its worker", BEST_EFFORT, now, NEVER, now));
        c.taker.settle(0, 0, false, true, now, new Effects());
        a.answer();
        assertEquals(List.of("a", "b", "c"), started);
    }

    @Test
    void nobodyIsCalledWhileThereIsNoRoomAndNobodyWhoDoesNotWait() {
        final Model a = model("a").offer(STRICT);
        final Model b = model("b").offer(STRICT);
        final Model c = model("c").offer(STRICT);
        final Model idle = model("idle");
        a.offer(STRICT);
        b.offer(STRICT);
        assertEquals(1, c.decisions);
        a.answer();
        assertEquals(2, c.decisions);
        assertEquals(0, idle.decisions);
    }

    @Test
    void aBatchBehindAnotherOfItsModelIsForWhoIsAlone() {
        final Model a = model("a").offer(STRICT);
        assertTrue(a.taker.takeAhead("its worker"));
        assertFalse(a.taker.takeAhead("another"));
        a.event(() -> a.held.add(new Request(STRICT, now)));
        assertFalse(a.taker.takeAhead("its worker"));
        final Model b = model("b").offer(STRICT);
        assertEquals(1, b.taker.waitsFor());
        a.answer();
        assertEquals(List.of("a", "b"), started);
        assertFalse(a.taker.takeAhead("its worker"));
    }

    @Test
    void whatStandsBehindAnotherBeginsWhenThatIsAnswered() {
        final Model a = model("a").offer(STRICT);
        final Model b = model("b").offer(STRICT);
        assertTrue(a.taker.isFirst());
        assertFalse(b.taker.isFirst());
        now = 5;
        a.answer();
        assertTrue(b.taker.isFirst());
        assertEquals(5, b.taker.firstSinceNs());
        assertEquals(5, room.endedNs());
    }

    @Test
    void whatStandsBehindAnotherIsFirstWhenThatIsLost() {
        final Model a = model("a").offer(STRICT);
        final Model b = model("b").offer(STRICT);
        now = 5;
        a.die();
        assertTrue(b.taker.isFirst());
        assertEquals(5, b.taker.firstSinceNs());
        assertTrue(room.endedNs() < 0);
    }

    @Test
    void nothingIsForgottenInAnyOrderOfEvents() {
        final int schedules = Integer.getInteger("shunter.schedules", 400) / 4 + 1;
        for (int seed = 0; seed < schedules; seed++) {
            final PoolRoomTest fresh = new PoolRoomTest();
            try {
                fresh.runAnyhow(new Random(seed));
            } catch (AssertionError e) {
                throw new AssertionError("seed " + seed + ": " + e.getMessage(), e);
            }
        }
    }

    private void runAnyhow(final Random random) {
        for (int i = 0; i < 5; i++) {
            new Model("m" + i, random.nextInt(3) * 20, random.nextInt(2) == 0);
        }
        int offered = 0;
        int answered = 0;
        for (int step = 0; step < 300; step++) {
            now += random.nextInt(4);
            final Model model = models.get(random.nextInt(models.size()));
            final int what = random.nextInt(20);
            if (what < 9 && model.queue.size() < 8) {
                model.offer(RequestClass.all()[random.nextInt(2)]);
                offered++;
            } else if (what < 15) {
                answered += model.held.size();
                model.answer();
            } else if (what == 15 && !model.queue.isEmpty()) { // too late, or its client hung up
                model.event(() -> model.queue.remove(random.nextInt(model.queue.size())));
                offered--;
            } else if (what == 16) {
                model.die();
            } else if (what == 17) {
                model.event(() -> model.patient = random.nextInt(3) == 0);
            } else {
                model.event(() -> model.ready = true);
            }
            check();
        }
        for (final Model model : models) {
            model.event(() -> {
                model.patient = false;
                model.ready = true;
            });
        }
        for (int i = offered - answered; i > 0; i--) {
            check();
            final Model next =
                    models.stream()
                            .max(Comparator.comparingInt(model -> model.held.size()))
                            .orElseThrow();
            next.answer();
            answered++;
        }
        assertEquals(0, taken());
        assertEquals(offered, answered);
        models.forEach(model -> assertEquals(List.of(), model.queue));
        final RoomTaker last = room.join(false, () -> {});
        assertTrue(room.isAlone(last), "somebody who has nothing is still there");
    }

    @Test
    void modelsOnThreadsOfTheirOwnAllGetDone() throws InterruptedException {
        final AtomicInteger users = new AtomicInteger();
        final List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < 4; i++) {
            final Model model = model("m" + i);
            model.users = users;
            threads.add(new Thread(() -> work(model)));
        }
        threads.forEach(Thread::start);
        for (final Thread thread : threads) {
            thread.join();
        }
        final int[] left = models.stream().mapToInt(model -> model.queue.size()).toArray();
        assertEquals(0, Arrays.stream(left).sum(), () -> Arrays.toString(left));
        assertEquals(0, users.get());
    }

    private static void work(final Model model) {
        final long endNs = System.nanoTime() + 60_000_000_000L;
        for (int i = 0; i < 300; i++) {
            model.offer(RequestClass.all()[i % 2]);
            while (!model.runs() && System.nanoTime() - endNs < 0) {
                Thread.yield();
            }
            model.event(
                    () -> {
                        if (!model.held.isEmpty()) {
                            model.users.decrementAndGet();
                            model.held.remove(0);
                            model.taker.answered(System.nanoTime());
                        }
                    });
        }
    }
}
