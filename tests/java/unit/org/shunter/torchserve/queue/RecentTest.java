package org.shunter.torchserve.queue;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.shunter.torchserve.forming.RequestClass.BEST_EFFORT;
import static org.shunter.torchserve.forming.RequestClass.STRICT;

import java.util.List;
import org.junit.jupiter.api.Test;
import org.shunter.torchserve.dispatch.TestModel;
import org.shunter.torchserve.forming.RequestClass;
import org.shunter.torchserve.forming.Rerun;

/** What is remembered of the last requests, and what is forgotten. */
final class RecentTest {
    private final Recent recent = new Recent(null);

    private static Entry entry(final String id, final RequestClass c, final long deadlineNs) {
        return new Entry(new TestModel.Request(id, id), c, 10, deadlineNs, Rerun.AFTER_DEATH);
    }

    @Test
    void nothingIsThereAtFirst() {
        assertEquals(0, recent.size());
    }

    @Test
    void theLastOneComesFirst() {
        final Entry first = entry("a", STRICT, 50);
        final Entry second = entry("b", BEST_EFFORT, Entry.NEVER);
        second.deaths = 1;
        recent.answered(first, new Batch(List.of(first, second), STRICT, 20), 3, 200, 40);
        recent.ended(second, 500, "Worker died", 60);
        assertEquals(2, recent.size());
        assertEquals(
                new Recent.Line("b", BEST_EFFORT, 10, Entry.NEVER, 0, 60, 0, -1, 1, 500, "Worker died", ""),
                recent.get(0));
        assertEquals(
                new Recent.Line("a", STRICT, 10, 50, 20, 40, 2, 3, 0, 200, "", ""), recent.get(1));
    }

    @Test
    void theOldestOnesAreForgotten() {
        for (int i = 0; i < 2 * Recent.KEPT + 5; i++) {
            recent.ended(entry("r" + i, STRICT, Entry.NEVER), 503, "", i);
        }
        assertEquals(Recent.KEPT, recent.size());
        for (int age = 0; age < Recent.KEPT; age++) {
            assertEquals("r" + (2 * Recent.KEPT + 4 - age), recent.get(age).id());
        }
    }
}
