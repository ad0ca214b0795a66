package org.shunter.torchserve.worker;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.netty.buffer.ByteBuf;
import io.netty.buffer.CompositeByteBuf;
import io.netty.buffer.UnpooledByteBufAllocator;
import io.netty.util.IllegalReferenceCountException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.aggregator.ArgumentsAccessor;
import org.junit.jupiter.params.provider.CsvSource;
import org.pytorch.serve.util.messages.InputParameter;
import org.shunter.torchserve.dispatch.TestModel;
import org.shunter.torchserve.forming.RequestClass;
import org.shunter.torchserve.forming.Rerun;
import org.shunter.torchserve.queue.Entry;
import org.shunter.torchserve.stock.ReceivedBody;

/** The buffer of a batch. */
class BatchEncoderTest {
    private static final int LARGE = (70 << 20) + 1;

    private final UnpooledByteBufAllocator allocator = new UnpooledByteBufAllocator(true);

    private static Entry entry() {
        final TestModel.Request request = new TestModel.Request("r", "r");
        return new Entry(request, RequestClass.STRICT, 0, Entry.NEVER, Rerun.AFTER_DEATH);
    }

    @Test
    void aBatchThatCannotBeEncodedKeepsNoMemory() {
        final Entry bad = entry();
        bad.job
                .getPayload()
                .setHeaders(
                        new HashMap<>() {
                            private static final long serialVersionUID = 1L;

                            @Override
                            public Set<Map.Entry<String, String>> entrySet() {
                                throw new IllegalStateException("told to fail");
                            }
                        });
        final List<Entry> batch = List.of(entry(), bad);
        assertThrows(
                IllegalStateException.class, () -> BatchEncoder.encode(batch, allocator));
        assertEquals(0, allocator.metric().usedDirectMemory());
    }

    @Test
    void theBufferOfALargeBatchHasItsSizeFromTheStart() {
        final Entry large = entry();
        large.job.getPayload().addParameter(new InputParameter("body", new byte[LARGE]));
        final ByteBuf out = BatchEncoder.encode(List.of(large), allocator);
        assertTrue(out.capacity() < LARGE + 1024, "it grew to " + out.capacity());
        assertTrue(out.release());
    }

    /** Bodies of such lengths; negative: kept as it was received, in pieces. */
    @ParameterizedTest
    @CsvSource({"-20000", "20, -20000", "-20000, 20", "-20000, -30000", "0, -20000, 5, -9, 7"})
    void aBodyThatIsKeptAsItWasReceivedIsWrittenLikeAnyOther(final ArgumentsAccessor lengths) {
        final List<Entry> copied = new ArrayList<>();
        final List<Entry> received = new ArrayList<>();
        for (int i = 0; i < lengths.size(); i++) {
            final byte[] bytes = new byte[Math.abs(lengths.getInteger(i))];
            new Random(i).nextBytes(bytes);
            final InputParameter plain = new InputParameter("body", bytes, "text/plain");
            copied.add(with(plain));
            received.add(with(lengths.getInteger(i) < 0 ? inPieces(bytes) : plain));
        }
        final ByteBuf expected = BatchEncoder.encode(copied, allocator);
        final ByteBuf written = BatchEncoder.encode(received, allocator);
        assertEquals(expected, written);
        assertTrue(expected.release());
        received.forEach(entry -> ReceivedBody.release(entry.job));
        assertTrue(written.isReadable());
        assertTrue(written.release());
        assertEquals(0, allocator.metric().usedDirectMemory());
    }

    @Test
    void aBodyThatWasGivenBackFailsItsBatchAndKeepsNoMemory() {
        final Entry gone = with(inPieces(new byte[20_000]));
        final Entry other = with(inPieces(new byte[20_000]));
        ReceivedBody.release(gone.job);
        assertThrows(
                IllegalReferenceCountException.class,
                () -> BatchEncoder.encode(List.of(other, gone), allocator));
        ReceivedBody.release(other.job);
        assertEquals(0, allocator.metric().usedDirectMemory());
    }

    private static Entry with(final InputParameter parameter) {
        final Entry entry = entry();
        entry.job.getPayload().addParameter(parameter);
        return entry;
    }

    private ReceivedBody inPieces(final byte[] bytes) {
        final CompositeByteBuf pieces = allocator.compositeDirectBuffer(Integer.MAX_VALUE);
        for (int from = 0; from < bytes.length; from += 8192) {
            final int size = Math.min(8192, bytes.length - from);
            pieces.addComponent(true, allocator.directBuffer(size).writeBytes(bytes, from, size));
        }
        return new ReceivedBody("body", "text/plain", pieces);
    }
}
