package org.shunter.torchserve.worker;

import io.netty.buffer.ByteBuf;
import io.netty.buffer.ByteBufAllocator;
import io.netty.buffer.ByteBufUtil;
import io.netty.buffer.CompositeByteBuf;
import java.util.List;
import java.util.Map;
import org.pytorch.serve.util.messages.InputParameter;
import org.pytorch.serve.util.messages.ModelLoadModelRequest;
import org.pytorch.serve.util.messages.RequestInput;
import org.pytorch.serve.wlm.Model;
import org.shunter.torchserve.queue.Entry;
import org.shunter.torchserve.stock.ReceivedBody;

/**
 * Writes TorchServe's worker protocol: big-endian, strings as length and bytes, lists ended by -1.
 * A batch becomes one buffer; nothing is allocated per field. Bodies that are kept as they were
 * received are parts of it as they are.
 */
final class BatchEncoder {
    private static final int END = -1;
    private static final int GUESS_PER_REQUEST = 512;

    private BatchEncoder() {}

    /** The inference message of a batch. */
    static ByteBuf encode(final List<Entry> entries, final ByteBufAllocator allocator) {
        long size = 16;
        int received = 0;
        for (final Entry entry : entries) {
            size += GUESS_PER_REQUEST;
            for (final InputParameter parameter : entry.job.getPayload().getParameters()) {
                if (parameter instanceof ReceivedBody) {
                    received++;
                } else {
                    size += parameter.getValue().length;
                }
            }
        }
        final ByteBuf out = allocator.ioBuffer((int) Math.min(size, Integer.MAX_VALUE));
        final Insertions inserted = received == 0 ? null : new Insertions(received);
        try {
            out.writeByte('I');
            for (final Entry entry : entries) {
                writeRequest(entry.job.getPayload(), out, inserted);
            }
            out.writeInt(END);
            return inserted == null ? out : inserted.into(out, allocator);
        } catch (RuntimeException | Error e) {
            out.release();
            throw e;
        }
    }

    private static void writeRequest(
            final RequestInput input, final ByteBuf out, final Insertions inserted) {
        writeText(input.getRequestId(), out);
        for (final Map.Entry<String, String> header : input.getHeaders().entrySet()) {
            writeText(header.getKey(), out);
            writeText(header.getValue(), out);
        }
        out.writeInt(END);
        for (final InputParameter parameter : input.getParameters()) {
            writeText(parameter.getName(), out);
            writeText(parameter.getContentType(), out);
            if (parameter instanceof ReceivedBody body) {
                out.writeInt(body.size());
                inserted.add(body, out.writerIndex());
            } else {
                writeBytes(parameter.getValue(), out);
            }
        }
        out.writeInt(END);
    }

    /** The load message of a model for a worker on a GPU, -1 for none. */
    static ByteBuf encodeLoad(
            final Model model, final int gpuId, final int batchSize, final ByteBufAllocator allocator) {
        final ModelLoadModelRequest request = new ModelLoadModelRequest(model, gpuId);
        final ByteBuf out = allocator.ioBuffer(1024);
        out.writeByte('L');
        writeText(request.getModelName(), out);
        writeText(request.getModelPath(), out);
        out.writeInt(Math.max(1, batchSize));
        writeText(request.getHandler(), out);
        out.writeInt(gpuId);
        writeText(request.getEnvelope(), out);
        return out.writeBoolean(request.isLimitMaxImagePixels());
    }

    private static void writeText(final CharSequence text, final ByteBuf out) {
        if (text == null) {
            out.writeInt(0);
            return;
        }
        final int at = out.writerIndex();
        out.writeInt(0);
        out.setInt(at, ByteBufUtil.writeUtf8(out, text));
    }

    private static void writeBytes(final byte[] bytes, final ByteBuf out) {
        out.writeInt(bytes.length);
        out.writeBytes(bytes);
    }

    /** Bodies that belong between the bytes of a buffer. */
    private static final class Insertions {
        private final ReceivedBody[] bodies;
        private final int[] at;
        private int count;

        Insertions(final int most) {
            bodies = new ReceivedBody[most];
            at = new int[most];
        }

        void add(final ReceivedBody body, final int writtenBefore) {
            bodies[count] = body;
            at[count++] = writtenBefore;
        }

        /** The whole message; takes over the buffer's reference, unless it throws. */
        ByteBuf into(final ByteBuf out, final ByteBufAllocator allocator) {
            final CompositeByteBuf whole = allocator.compositeDirectBuffer(Integer.MAX_VALUE);
            try {
                int from = 0;
                for (int i = 0; i < count; i++) {
                    whole.addComponent(true, out.retainedSlice(from, at[i] - from));
                    whole.addFlattenedComponents(true, bodies[i].retained());
                    from = at[i];
                }
                whole.addComponent(true, out.retainedSlice(from, out.writerIndex() - from));
            } catch (RuntimeException | Error e) {
                whole.release();
                throw e;
            }
            out.release();
            return whole;
        }
    }
}
