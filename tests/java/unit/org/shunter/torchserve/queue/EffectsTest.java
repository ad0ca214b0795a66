package org.shunter.torchserve.queue;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Test;

/** What one action after a decision does keeps no other from happening. */
final class EffectsTest {
    @Test
    void anErrorInOneActionKeepsNoOtherFromHappening() {
        final List<String> done = new ArrayList<>();
        final Effects effects = new Effects();
        effects.later(
                () -> {
                    throw new OutOfMemoryError("told to fail");
                });
        effects.later(
                () -> {
                    throw new IllegalStateException("told to fail");
                });
        effects.later(() -> done.add("last"));
        effects.run();
        assertEquals(List.of("last"), done);
    }
}
