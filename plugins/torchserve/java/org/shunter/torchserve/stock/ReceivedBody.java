package org.shunter.torchserve.stock;

import io.netty.buffer.ByteBuf;
import io.netty.buffer.ByteBufUtil;
import io.netty.buffer.CompositeByteBuf;
import io.netty.util.internal.PlatformDependent;
import java.lang.ref.Cleaner;
import java.util.List;
import java.util.concurrent.atomic.AtomicLong;
import org.pytorch.serve.job.Job;
import org.pytorch.serve.util.messages.InputParameter;

/**
 * A request's body in the buffers into which it was received. TorchServe copies a body into the heap,
 * and a worker's socket takes it only outside of it: two copies of cold memory that a large body
 * pays dearly, and does not need.
 *
 * <p>It goes back to its pool when the request has its answer, and at the latest when nobody refers
 * to it any more: who forgets one request costs memory only until the next collection.
 */
public final class ReceivedBody extends InputParameter {
    /** Smaller ones are cheaper to copy. */
    public static final int LEAST_BYTES = 16 << 10;

    /** The heap's collector does not know of this memory; above it bodies go to the heap again. */
    private static final long MOST_HELD = PlatformDependent.maxDirectMemory() / 4;

    /** On average, at least; smaller ones are cheaper to copy than to hand on. */
    private static final int LEAST_PIECE_BYTES = 4 << 10;

    /** Of the buffer that a piece may keep, however small it is. */
    private static final int BUFFER_BYTES = 64 << 10;

    private static final AtomicLong HELD = new AtomicLong();
    private static final Cleaner CLEANER = Cleaner.create();
    private static final byte[] NONE = {};

    private final ByteBuf bytes;
    private final Cleaner.Cleanable end;

    /** Takes over a reference to the bytes. */
    public ReceivedBody(final String name, final CharSequence contentType, final ByteBuf bytes) {
        super(name, NONE, contentType);
        this.bytes = bytes;
        final long kept = kept(bytes);
        HELD.addAndGet(kept);
        end = CLEANER.register(this, new Release(bytes, kept));
    }

    /** Whether a body is one that should not be copied. */
    public static boolean isWorthIt(final ByteBuf body) {
        final int size = body.readableBytes();
        return size >= LEAST_BYTES
                && body.isDirect()
                && (!(body instanceof CompositeByteBuf pieces)
                        || (long) pieces.numComponents() * LEAST_PIECE_BYTES <= size)
                && HELD.get() + kept(body) <= MOST_HELD;
    }

    /** Bytes of the buffers that a body lies in, at most. */
    private static long kept(final ByteBuf body) {
        final int pieces = body instanceof CompositeByteBuf whole ? whole.numComponents() : 1;
        return Math.max(body.readableBytes(), (long) pieces * BUFFER_BYTES);
    }

    /** Bytes of the buffers of all bodies that were not given back. */
    static long held() {
        return HELD.get();
    }

    public int size() {
        return bytes.readableBytes();
    }

    /**
     * The bytes, with a reference of their own.
     *
     * @throws io.netty.util.IllegalReferenceCountException when they were given back
     */
    public ByteBuf retained() {
        return bytes.retainedDuplicate();
    }

    /** A copy, for whoever does not know better. */
    @Override
    public byte[] getValue() {
        final ByteBuf own = retained();
        try {
            return ByteBufUtil.getBytes(own);
        } finally {
            own.release();
        }
    }

    /** The request is over, and nobody reads it any more. */
    public void release() {
        end.clean();
    }

    /** Of a request that is over. */
    public static void release(final Job job) {
        if (job.getPayload() == null) {
            return;
        }
        final List<InputParameter> parameters = job.getPayload().getParameters();
        final int last = parameters.size() - 1;
        if (last >= 0 && parameters.get(last) instanceof ReceivedBody body) {
            body.release();
        }
    }

    /** Must not know the body itself, which else would never be unreachable. */
    private record Release(ByteBuf bytes, long kept) implements Runnable {
        @Override
        public void run() {
            HELD.addAndGet(-kept);
            bytes.release();
        }
    }
}
