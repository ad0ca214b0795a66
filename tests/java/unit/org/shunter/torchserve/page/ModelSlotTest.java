package org.shunter.torchserve.page;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import org.junit.jupiter.api.Test;

/** Texts on the control page. */
final class ModelSlotTest {
    private final ByteBuffer bytes = ByteBuffer.allocateDirect(ControlLayout.SLOT_SIZE);
    private final ModelSlot slot = new ModelSlot(bytes, 0);

    private String written(final String text) {
        slot.changeIdentity(
                () ->
                        slot.setText(
                                ControlLayout.S_LAST_CHANGE, ControlLayout.LAST_CHANGE_BYTES, text));
        final byte[] found = new byte[ControlLayout.LAST_CHANGE_BYTES];
        bytes.get(ControlLayout.S_LAST_CHANGE, found);
        return new String(found, StandardCharsets.UTF_8).replace("\0", "");
    }

    @Test
    void aTextThatIsTooLongEndsWithAWholeCharacter() {
        final String before = "x".repeat(ControlLayout.LAST_CHANGE_BYTES - 2);
        assertEquals(before, written(before + "\u20ac")); // three bytes
        assertEquals(before + "\u00e9", written(before + "\u00e9\u00e9")); // two of two
        assertEquals(before, written(before + "\ud83d\ude00")); // four
    }

    /** The controller may just have been computing what it then wrote for the model before. */
    @Test
    void whatWasWrittenAfterAModelLeftIsNotTheNextOnes() {
        final ByteBuffer shared = ByteBuffer.allocateDirect(ControlLayout.PAGE_SIZE);
        final ControlPage page = new ControlPage(shared);
        final int last = ControlLayout.SLOT_COUNT - 1;
        for (int i = 0; i < last; i++) {
            page.claim();
        }
        page.release(page.claim());
        final int late = ControlLayout.SLOTS_OFFSET + last * ControlLayout.SLOT_SIZE;
        page.set(late + ControlLayout.S_WANTED_REQUEST, 7);
        page.set(late + ControlLayout.S_COMMAND_SEQUENCE, 2);
        final ModelSlot next = page.claim();
        assertEquals(last, next.index());
        assertEquals(0, next.get(ControlLayout.S_WANTED_REQUEST));
        assertEquals(0, next.get(ControlLayout.S_COMMAND_SEQUENCE));
        assertEquals(0, next.get(ControlLayout.S_SLOT_SEQUENCE) % 2);
    }

    @Test
    void theFieldThatFollowsIsLeftAlone() {
        final int next = ControlLayout.S_LAST_CHANGE + ControlLayout.LAST_CHANGE_BYTES;
        bytes.put(next, (byte) 7);
        written("y".repeat(1000));
        assertEquals(7, bytes.get(next));
        assertEquals("short", written("short")); // nothing of a longer one remains
    }
}
