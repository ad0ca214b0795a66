package org.shunter.torchserve.pool;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.EnumSet;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.shunter.torchserve.forming.RequestClass;
import org.shunter.torchserve.host.TestHost;
import org.shunter.torchserve.page.ControlLayout;
import org.shunter.torchserve.settings.GroupConfig;
import org.shunter.torchserve.settings.ModelSettings;
import org.shunter.torchserve.worker.Worker;

/** Changes of a model's workers, whose processes never load. */
final class WorkerPoolTest {
    private static final ModelSettings SETTINGS = ModelSettings.of(Map.of());

    private TestHost test;
    private ServedModel served;
    private WorkerPool pool;

    @BeforeEach
    void serve() throws Exception {
        test = new TestHost("[ \"$2\" = -c ] && exit 3", "exec sleep 600");
        served = new ServedModel(test.host, test.model(), SETTINGS, 100);
        pool = served.pool();
    }

    @AfterEach
    void end() throws Exception {
        test.refuse(0, 0);
        get(pool.scale(0, 0));
        test.close();
    }

    private static <T> T get(final CompletableFuture<T> future) throws Exception {
        return future.get(TestHost.LONGEST_S, TimeUnit.SECONDS);
    }

    @Test
    void aWorkerThatFindsNoThreadLeavesNothingBehind() throws Exception {
        test.refuse(1, 1);
        assertThrows(OutOfMemoryError.class, () -> pool.scale(2, 2));
        assertEquals(List.of(), pool.workers());
        assertTrue(pool.current().isSettled());
        assertEquals("1x0x1", GroupConfig.text(pool.current().configuration()));
        pool.scale(2, 2);
        for (final Worker worker : pool.workers()) { // of the first, two numbers may still be in use
            assertTrue(worker.address.port() < 9003, worker::toString);
        }
        assertEquals(2, pool.workers().size());
    }

    @Test
    void aResizeThatFindsNoThreadChangesNothing() {
        pool.scale(1, 1);
        final List<Worker> before = pool.workers();
        test.refuse(1, 1);
        assertThrows(
                OutOfMemoryError.class,
                () -> pool.configure(List.of(GroupConfig.of(3, 0, 1)), false, false, null));
        assertEquals(before, pool.workers());
        assertFalse(pool.isChanging());
        assertEquals("1x0x1", GroupConfig.text(pool.current().configuration()));
    }

    @Test
    void aModelEndsWithoutAThreadToSaySo() throws Exception {
        final CompletableFuture<Integer> loaded = pool.scale(1, 1);
        test.refuse(0, 100);
        assertEquals(200, get(pool.scale(0, 0)));
        assertEquals(500, get(loaded)); // it did not
    }

    @Test
    void aGenerationThatIsRetiredBeforeItBeginsStartsNoWorker() throws Exception {
        pool.scale(1, 1);
        test.hold();
        final CompletableFuture<Void> change =
                pool.configure(List.of(GroupConfig.of(2, 1, 1)), true, false, null);
        final Generation next = pool.next();
        final CompletableFuture<Integer> retired = pool.scale(0, 0);
        test.letGo();
        final Exception why = assertThrows(ExecutionException.class, () -> get(change));
        assertTrue(why.getMessage().contains("was removed"), why.getMessage());
        assertEquals(List.of(), next.workers());
        assertEquals(200, get(retired));
    }

    @Test
    void aScaleCallThatWaitedAndFindsNoThreadFailsAlone() throws Exception {
        pool.scale(1, 1);
        test.hold();
        pool.configure(List.of(GroupConfig.of(2, 1, 1)), true, false, null);
        pool.scale(3, 3);
        test.refuse(0, 1);
        synchronized (pool) { // the new generation has loaded
            pool.serve(pool.next());
            pool.changed(PoolState.Event.SUCCEEDED);
        }
        assertFalse(pool.isChanging());
        assertEquals(List.of(), pool.current().workers());
        pool.scale(3, 3);
        assertEquals(3, pool.current().workers().size());
        test.letGo();
    }

    @Test
    void whoHadEndedBeforeItIsDrainedIsForgotten() {
        final WorkerRoster roster = new WorkerRoster(test.host, served);
        final Generation current = pool.current();
        final Worker worker = roster.start(current.groups.get(0));
        worker.end();
        current.groups.get(0).remove(worker);
        roster.drain(worker);
        assertEquals(List.of(), roster.with(current));
    }

    @Test
    void modelsThatCannotBeServedTakeNoSlots() {
        final GroupConfig nowhere =
                new GroupConfig(1, 0, 8, EnumSet.allOf(RequestClass.class), "none", null, null);
        final ModelSettings wrong = SETTINGS.withConfiguration(List.of(nowhere));
        for (int i = 0; i < ControlLayout.SLOT_COUNT; i++) {
            assertThrows(
                    NumberFormatException.class,
                    () -> new ServedModel(test.host, test.model(), wrong, 100));
        }
        assertTrue(test.host.page().claim().index() >= 0, "no slot is left");
    }

    @Test
    void aWantedConfigurationThatFindsNoThreadIsUndone() {
        served.slot().set(ControlLayout.S_COMMAND_SEQUENCE, 2);
        served.slot().set(ControlLayout.S_WANTED_REQUEST, 1);
        served.slot().set(ControlLayout.S_WANTED_GROUPS, 1);
        test.refuse(0, 1);
        assertThrows(OutOfMemoryError.class, served::keep);
        assertEquals(1, served.slot().get(ControlLayout.S_CHANGE_REQUEST));
        assertEquals(
                ControlLayout.CHANGE_UNDONE, served.slot().get(ControlLayout.S_CHANGE_STATE));
    }
}
