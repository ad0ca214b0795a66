package org.shunter.torchserve.host;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;

/** Numbers of workers are used again. */
final class WorkerNumbersTest {
    @Test
    void noTwoHaveTheSameAndNoMoreAreUsedThanWereNeededAtOnce() {
        for (int seed = 0; seed < 100; seed++) {
            final Random random = new Random(seed);
            final WorkerNumbers numbers = new WorkerNumbers(new AtomicInteger(9000)::getAndIncrement);
            final List<Integer> taken = new ArrayList<>();
            final Set<Integer> ever = new HashSet<>();
            int most = 0;
            for (int step = 0; step < 1000; step++) {
                if (taken.isEmpty() || taken.size() < 20 && random.nextBoolean()) {
                    final int number = numbers.take();
                    assertTrue(!taken.contains(number), "seed " + seed);
                    taken.add(number);
                    ever.add(number);
                    most = Math.max(most, taken.size());
                } else {
                    numbers.release(taken.remove(random.nextInt(taken.size())));
                }
            }
            assertEquals(most, ever.size(), "seed " + seed);
        }
    }

    @Test
    void stockWorkersThatCountOnTheSameCounterKeepTheirs() {
        final AtomicInteger shared = new AtomicInteger(9000);
        final WorkerNumbers numbers = new WorkerNumbers(shared::getAndIncrement);
        assertEquals(9000, numbers.take());
        assertEquals(9001, shared.getAndIncrement());
        numbers.release(9000);
        assertEquals(List.of(9000, 9002), List.of(numbers.take(), numbers.take()));
    }
}
