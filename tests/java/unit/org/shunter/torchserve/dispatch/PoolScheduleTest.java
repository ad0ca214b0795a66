package org.shunter.torchserve.dispatch;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assertions.fail;
import static org.shunter.torchserve.dispatch.TestModel.MS;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import org.apache.logging.log4j.Level;
import org.apache.logging.log4j.core.config.Configurator;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.shunter.torchserve.page.ControlLayout;
import org.shunter.torchserve.page.ControlPage;
import org.shunter.torchserve.preemption.Hold;
import org.shunter.torchserve.preemption.PoolRoom;
import org.shunter.torchserve.preemption.RoomTaker;
import org.shunter.torchserve.preemption.Turns;
import org.shunter.torchserve.queue.Batch;

/**
 * Random orders of everything that may happen to models that share the processes of a pool, and
 * slices, where turns are taken at times.
 */
class PoolScheduleTest {
    private static final int MODELS = 4;

    private final ControlPage page =
            new ControlPage(ByteBuffer.allocateDirect(ControlLayout.PAGE_SIZE));
    private final Hold hold = new Hold(page);
    private final Turns turns = new Turns(page);
    private final List<Model> models = new ArrayList<>();
    private final List<PoolRoom> rooms = new ArrayList<>();
    private boolean passing;

    @BeforeAll
    static void faultsAreExpected() {
        Configurator.setLevel("org.shunter", Level.OFF);
    }

    /** One of the models; all have the same time. */
    private final class Model extends ScheduleTest.Schedule {
        private final Random random;
        private final boolean pooled;

        Model(final Random random, final boolean pooled) {
            super(random, limits(random), PoolScheduleTest.this.page, hold, turns);
            this.random = random;
            this.pooled = pooled;
        }

        @Override
        PoolRoom room() {
            return pooled ? rooms.get(random.nextInt(rooms.size())) : null;
        }

        @Override
        void onGiven(final FakeWorker worker, final Batch batch) {
            super.onGiven(worker, batch);
            checkRoom();
        }

        @Override
        void pass(final long ns) {
            if (passing) {
                super.pass(ns);
                return;
            }
            passing = true;
            models.forEach(model -> model.pass(ns));
            passing = false;
        }

        int taken(final PoolRoom room) {
            return workers.stream()
                    .filter(worker -> worker.room == room)
                    .mapToInt(worker -> worker.inFlight.size())
                    .sum();
        }

        /** Processes of its workers that have no room. */
        int full() {
            final List<PoolRoom> full =
                    current.stream().map(worker -> worker.room).distinct().toList();
            return (int) full.stream().filter(room -> room != null && isFull(room)).count();
        }
    }

    private int taken(final PoolRoom room) {
        return models.stream().mapToInt(model -> model.taken(room)).sum();
    }

    private boolean isFull(final PoolRoom room) {
        return taken(room) == PoolRoom.DEPTH;
    }

    private void checkRoom() {
        for (final PoolRoom room : rooms) {
            assertTrue(taken(room) <= PoolRoom.DEPTH, () -> taken(room) + " batches at once");
        }
    }

    private void check() {
        checkRoom();
        for (final Model model : models) {
            final int waits = model.dispatcher.waitsForRoom();
            assertTrue(waits <= model.full(), () -> "one of " + waits + " is forgotten");
        }
    }

    @Test
    void everyRequestOfEveryModelGetsOneAnswerWhateverHappens() {
        final int count = Integer.getInteger("shunter.schedules", 400) / 5 + 1;
        final String only = System.getProperty("shunter.seed", "");
        for (long seed = 0; seed < count; seed++) {
            final long used = only.isEmpty() ? seed : Long.parseLong(only);
            try {
                new PoolScheduleTest().run(new Random(used));
            } catch (RuntimeException | AssertionError e) {
                fail("schedule with seed " + used + ": " + e, e);
            }
        }
    }

    private void run(final Random random) {
        for (int i = 1 + random.nextInt(2); i > 0; i--) {
            rooms.add(new PoolRoom(i));
        }
        for (int i = 0; i < MODELS; i++) {
            models.add(new Model(random, i == 0 || random.nextInt(5) > 0));
        }
        models.forEach(ScheduleTest.Schedule::reconfigure);
        for (int i = 20 + random.nextInt(200); i > 0; i--) {
            models.get(random.nextInt(MODELS)).happen();
            check();
        }
        page.set(ControlLayout.H_EXCLUSIVE, 0);
        models.forEach(ScheduleTest.Schedule::beginToFinish);
        for (int i = 0; i < 2000 && !isOver(); i++) {
            models.forEach(ScheduleTest.Schedule::goOn);
            models.get(0).pass(MS);
            check();
        }
        models.get(0).pass(10_000 * MS);
        models.forEach(ScheduleTest.Schedule::checkEnd);
        for (final PoolRoom room : rooms) {
            assertEquals(List.of(), Reachable.from(room, object -> object instanceof RoomTaker));
        }
    }

    private boolean isOver() {
        return models.stream().allMatch(ScheduleTest.Schedule::isOver);
    }

    @Test
    void workersWithProcessesOfTheirOwnHaveNothingToDoWithRooms() {
        final TestModel model = new TestModel(100, 0);
        final TestModel.FakeWorker worker = model.serve(4)[0];
        model.strict("a");
        assertEquals(
                List.of(), Reachable.from(model.dispatcher, object -> object instanceof RoomTaker));
        worker.answer();
        assertEquals(
                List.of(), Reachable.from(model.dispatcher, object -> object instanceof RoomTaker));
    }
}
