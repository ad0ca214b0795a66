package org.shunter.torchserve.preemption;

import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.shunter.torchserve.page.ControlLayout.*;

import java.nio.ByteBuffer;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.shunter.torchserve.page.ControlPage;
import org.shunter.torchserve.page.SliceSet;

/** What a batch that ran meanwhile hears of holds that have come and gone. */
final class HoldTest {
    private static final SliceSet MINE = SliceSet.of(0b01);
    private static final SliceSet OTHER = SliceSet.of(0b10);

    private final ControlPage page = new ControlPage(ByteBuffer.allocateDirect(PAGE_SIZE));
    private final Hold hold = new Hold(page);
    private final Hold.Part first = hold.part();
    private final Hold.Part second = hold.part();

    @BeforeEach
    void aServer() {
        page.set(HEADER_SIZE + K_HOLDER_PID, 1);
        page.set(HEADER_SIZE + K_HOLDER_HEARTBEAT_NS, 1);
    }

    @Test
    void aHoldThatCameAndWentDisturbsThoughAnotherWasUpAllTheTime() {
        first.show(OTHER, 1, 1);
        assertFalse(hold.disturbs(MINE, 2, 2));
        second.show(MINE, 2, 3);
        assertTrue(hold.disturbs(MINE, 2, 3));
        second.show(SliceSet.NONE, 2, 4);
        assertTrue(hold.disturbs(MINE, 2, 5));
        assertFalse(hold.disturbs(MINE, 5, 5));
    }

    @Test
    void aHoldWithinAnotherDisturbsNobodyElse() {
        first.show(OTHER, 1, 1);
        second.show(OTHER, 2, 3);
        second.show(SliceSet.NONE, 2, 4);
        assertFalse(hold.disturbs(MINE, 2, 5));
    }
}
