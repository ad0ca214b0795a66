package org.shunter.torchserve.server;

import static org.junit.jupiter.api.Assertions.assertEquals;

import org.junit.jupiter.api.Test;

/** How it is told of what is counted: of one, and of more. */
final class TalliesTest {
    @Test
    void oneAndMore() {
        assertEquals("1 request ran again because its worker died", Tallies.again(1));
        assertEquals("2 requests ran again because their worker died", Tallies.again(2));
        assertEquals("1 request was given up: it ended two workers", Tallies.givenUp(1));
        assertEquals("3 requests were given up: each ended two workers", Tallies.givenUp(3));
    }
}
