package org.shunter.torchserve.pool;

import static org.junit.jupiter.api.Assertions.assertEquals;

import com.google.gson.internal.UnsafeAllocator;
import org.junit.jupiter.api.Test;
import org.pytorch.serve.wlm.Model;

/** Numbers that users registered. */
final class WorkerCountsTest {
    /** Its constructor needs a running server. */
    private static Model model(final int min, final int max) throws Exception {
        final Model model = UnsafeAllocator.INSTANCE.newInstance(Model.class);
        new WorkerCounts(min, max).writeTo(model);
        return model;
    }

    @Test
    void anExplicitChangeReplacesThem() throws Exception {
        final Model model = model(1, 2);
        final WorkerCounts others = new WorkerCounts(4, 4);
        assertEquals(others, WorkerCounts.of(model).replaceBy(others, model));
        assertEquals(others, WorkerCounts.of(model));
    }

    /** TorchServe writes a call's numbers before it passes the call on. */
    @Test
    void aScaleCallThatIsOnItsWayIsNotOverwritten() throws Exception {
        final Model model = model(1, 2);
        final WorkerCounts before = WorkerCounts.of(model);
        new WorkerCounts(3, 3).writeTo(model);
        assertEquals(before, before.replaceBy(new WorkerCounts(4, 4), model));
        assertEquals(new WorkerCounts(3, 3), WorkerCounts.of(model));
    }
}
