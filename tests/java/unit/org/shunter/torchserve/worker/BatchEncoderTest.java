package org.shunter.torchserve.worker;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.netty.buffer.ByteBuf;
import io.netty.buffer.UnpooledByteBufAllocator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.junit.jupiter.api.Test;
import org.pytorch.serve.util.messages.InputParameter;
import org.shunter.torchserve.dispatch.TestModel;
import org.shunter.torchserve.forming.RequestClass;
import org.shunter.torchserve.forming.Rerun;
import org.shunter.torchserve.queue.Entry;

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
}
