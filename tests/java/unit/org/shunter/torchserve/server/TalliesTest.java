package org.shunter.torchserve.server;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.shunter.torchserve.forming.RequestClass.BEST_EFFORT;
import static org.shunter.torchserve.forming.RequestClass.STRICT;

import org.junit.jupiter.api.Test;

/** How it is told of what is counted: of one, and of more. */
final class TalliesTest {
    @Test
    void oneAndMore() {
        assertEquals("1 request ran again because its worker died", Tallies.again(1));
        assertEquals("2 requests ran again because their worker died", Tallies.again(2));
        assertEquals("1 request was given up: it ended two workers", Tallies.givenUp(1));
        assertEquals("1 strict request was refused", Tallies.unserved(1, STRICT, "refused", null));
        assertEquals(
                "2 best_effort requests were refused; the last one: no",
                Tallies.unserved(2, BEST_EFFORT, "refused", "no"));
        assertEquals("3 requests were given up: each ended two workers", Tallies.givenUp(3));
    }

    @Test
    void aReasonMayBeLong() {
        final String told = Tallies.unserved(1, STRICT, "refused", "x".repeat(9000));
        assertTrue(told.length() < 600 && told.endsWith("xxx..."), told);
    }
}
