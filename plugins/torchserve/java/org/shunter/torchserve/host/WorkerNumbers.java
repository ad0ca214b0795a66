package org.shunter.torchserve.host;

import java.util.ArrayDeque;
import java.util.function.IntSupplier;

/**
 * Numbers of workers, which are ports where workers listen on TCP. Those of workers that are gone
 * are used again: a server that runs long must not count past the last port.
 */
final class WorkerNumbers {
    private final IntSupplier fresh;
    /** Who was freed first rests longest. */
    private final ArrayDeque<Integer> freed = new ArrayDeque<>();

    /** {@code fresh} gives a number that was never used. */
    WorkerNumbers(final IntSupplier fresh) {
        this.fresh = fresh;
    }

    /** A number that nobody has. */
    synchronized int take() {
        final Integer again = freed.pollFirst();
        return again == null ? fresh.getAsInt() : again;
    }

    /** Nobody listens there any more. */
    synchronized void release(final int number) {
        freed.addLast(number);
    }
}
