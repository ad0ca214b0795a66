package org.shunter.torchserve.queue;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.shunter.torchserve.forming.RequestClass.STRICT;

import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.pytorch.serve.job.Job;
import org.shunter.torchserve.dispatch.TestModel;
import org.shunter.torchserve.forming.Rerun;

/** What waits, after some of it came back from a worker. */
final class RequestQueueTest {
    private final RequestQueue queue = new RequestQueue(this);

    private Entry add(final long arrivalNs) {
        final Job job = new TestModel.Request("r", "r");
        final Entry entry = new Entry(job, STRICT, arrivalNs, Entry.NEVER, Rerun.AFTER_DEATH);
        queue.add(entry);
        return entry;
    }

    @Test
    synchronized void whatMustRunAloneDoesNotStandBetweenThoseThatShareABatch() {
        final Entry first = add(1);
        final Entry second = add(2);
        final Entry third = add(3);
        queue.take(STRICT, 1, new ArrayList<>());
        first.deaths = 1;
        queue.restore(first);
        assertEquals(2, queue.oldestArrivalNs(STRICT));
        assertSame(first, queue.peekAlone(STRICT));
        final List<Entry> rest = new ArrayList<>();
        queue.take(STRICT, 2, rest);
        assertEquals(List.of(second, third), rest);
        third.isolated = true;
        queue.restore(third);
        assertNull(queue.youngest(STRICT));
        assertEquals(2, queue.takeAll(STRICT).size());
    }

    @Test
    synchronized void whatANeverBegunBatchHeldGoesBackToItsPlace() {
        final Entry first = add(1);
        final Entry second = add(2);
        for (int round = 0; round < 200; round++) {
            queue.take(STRICT, 1, new ArrayList<>());
            queue.restore(first);
            assertEquals(1, queue.oldestArrivalNs(STRICT));
        }
        assertSame(second, queue.youngest(STRICT));
        assertEquals(List.of(first, second), queue.takeAll(STRICT));
        assertEquals(0, queue.size());
    }
}
