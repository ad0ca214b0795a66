package org.shunter.torchserve.stock;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.netty.buffer.ByteBuf;
import io.netty.buffer.CompositeByteBuf;
import io.netty.buffer.Unpooled;
import io.netty.util.IllegalReferenceCountException;
import java.util.Arrays;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Bodies that are kept where they were received. */
class ReceivedBodyTest {
    private static final int SIZE = 20_000;

    private static ByteBuf direct(final int size) {
        final byte[] bytes = new byte[size];
        Arrays.fill(bytes, (byte) 7);
        return Unpooled.directBuffer(size).writeBytes(bytes);
    }

    @Test
    void isGivenBackOnce() {
        final long before = ReceivedBody.held();
        final ByteBuf bytes = direct(SIZE);
        final ReceivedBody body = new ReceivedBody("body", "text/plain", bytes);
        assertEquals(before + (64 << 10), ReceivedBody.held(), "of its buffer");
        assertEquals(SIZE, body.size());
        assertEquals(SIZE, body.getValue().length);
        body.release();
        body.release();
        assertEquals(0, bytes.refCnt());
        assertEquals(before, ReceivedBody.held());
        assertThrows(IllegalReferenceCountException.class, body::retained);
    }

    @Test
    void whoStillReadsKeepsIt() {
        final ByteBuf bytes = direct(SIZE);
        final ReceivedBody body = new ReceivedBody("body", "text/plain", bytes);
        final ByteBuf own = body.retained();
        own.skipBytes(SIZE - 1);
        body.release();
        assertEquals(7, own.readByte());
        assertTrue(own.release());
    }

    @Test
    void readersDoNotMoveEachOther() {
        final ReceivedBody body = new ReceivedBody("body", "text/plain", direct(SIZE));
        final ByteBuf first = body.retained();
        first.skipBytes(100);
        final byte[] expected = new byte[SIZE];
        Arrays.fill(expected, (byte) 7);
        assertArrayEquals(expected, body.getValue());
        first.release();
        body.release();
    }

    @Test
    void oneThatIsForgottenIsGivenBackByTheCollector() throws InterruptedException {
        final long before = ReceivedBody.held();
        final ByteBuf bytes = direct(SIZE);
        new ReceivedBody("body", "text/plain", bytes);
        for (int i = 0; i < 200 && bytes.refCnt() > 0; i++) {
            System.gc();
            Thread.sleep(20);
        }
        assertEquals(0, bytes.refCnt());
        assertEquals(before, ReceivedBody.held());
    }

    @ParameterizedTest
    @CsvSource({
        "16383, 1, true, false",
        "16384, 1, true, true",
        "16384, 4, true, true",
        "16384, 5, true, false",
        "1000000, 100, true, true",
        "1000000, 1000, true, false",
        "1000000, 1, false, false",
        "1000000, 20, false, false",
    })
    void largeOnesInLargePiecesOutsideTheHeapAreWorthIt(
            final int size, final int pieces, final boolean isDirect, final boolean isWorthIt) {
        final CompositeByteBuf body = Unpooled.compositeBuffer(Integer.MAX_VALUE);
        for (int i = 0; i < pieces; i++) {
            final int end = (int) ((long) size * (i + 1) / pieces);
            final int length = end - body.readableBytes();
            body.addComponent(
                    true,
                    isDirect ? direct(length) : Unpooled.wrappedBuffer(new byte[length]));
        }
        assertEquals(isWorthIt, ReceivedBody.isWorthIt(body));
        body.release();
    }

    @Test
    void aPlainBufferIsOnePiece() {
        final ByteBuf body = direct(SIZE);
        assertTrue(ReceivedBody.isWorthIt(body));
        body.skipBytes(SIZE / 2);
        assertFalse(ReceivedBody.isWorthIt(body));
        body.release();
    }
}
