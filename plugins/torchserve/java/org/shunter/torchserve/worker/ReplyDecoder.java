package org.shunter.torchserve.worker;

import io.netty.buffer.ByteBuf;
import io.netty.channel.ChannelHandlerContext;
import io.netty.handler.codec.ByteToMessageDecoder;
import io.netty.handler.codec.TooLongFrameException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.shunter.torchserve.queue.Reply;

/**
 * Reads worker replies. Each prediction is taken as soon as it is complete, so that a large reply
 * in many pieces is not read again from its first byte.
 */
final class ReplyDecoder extends ByteToMessageDecoder {
    private static final int END = -1;

    private final int maxSize;
    private boolean inReply;
    private int code;
    private String message;
    private List<Reply.Prediction> predictions;

    /** A decoder that refuses fields of more than {@code maxSize} bytes. */
    ReplyDecoder(final int maxSize) {
        this.maxSize = maxSize;
    }

    /** The field is not complete yet. One instance: it is thrown for every partial read. */
    private static final class Incomplete extends RuntimeException {
        private static final long serialVersionUID = 1L;
        static final Incomplete INSTANCE = new Incomplete();

        private Incomplete() {
            super(null, null, false, false);
        }
    }

    @Override
    protected void decode(
            final ChannelHandlerContext context, final ByteBuf in, final List<Object> out) {
        int mark = in.readerIndex();
        try {
            if (!inReply) {
                final int status = readInt(in);
                message = readText(in);
                code = status;
                predictions = new ArrayList<>();
                inReply = true;
                mark = in.readerIndex();
            }
            int length = readLength(in);
            while (length != END) {
                predictions.add(readPrediction(in, length));
                mark = in.readerIndex();
                length = readLength(in);
            }
            inReply = false;
            out.add(new Reply(code, message, predictions));
            message = null; // a worker that idles keeps its connection, not its last answers
            predictions = null;
        } catch (Incomplete e) {
            in.readerIndex(mark);
        }
    }

    private Reply.Prediction readPrediction(final ByteBuf in, final int idLength) {
        final String id = text(in, idLength);
        final String contentType = readText(in);
        final int status = readInt(in);
        final String phrase = readText(in);
        final Map<String, String> headers = readHeaders(in);
        final byte[] body = new byte[checkedLength(in)];
        in.readBytes(body);
        return new Reply.Prediction(id, contentType, status, phrase, headers, body);
    }

    private Map<String, String> readHeaders(final ByteBuf in) {
        final int count = readInt(in);
        if (count < 0 || count > maxSize / 8) {
            throw new TooLongFrameException("A worker announced " + count + " response headers");
        }
        final Map<String, String> headers = new HashMap<>(4);
        for (int i = 0; i < count; i++) {
            final String name = readText(in);
            headers.put(name, readText(in));
        }
        return headers;
    }

    private static int readInt(final ByteBuf in) {
        if (in.readableBytes() < 4) {
            throw Incomplete.INSTANCE;
        }
        return in.readInt();
    }

    /** A length, or END. */
    private int readLength(final ByteBuf in) {
        final int length = readInt(in);
        if (length < END || length > maxSize) {
            throw new TooLongFrameException(
                    "A worker announced a field of " + length + " bytes; max_response_size in"
                            + " config.properties allows " + maxSize);
        }
        return length;
    }

    private int checkedLength(final ByteBuf in) {
        final int length = readLength(in);
        if (length == END) {
            throw new TooLongFrameException("A worker sent a field of negative length");
        }
        if (in.readableBytes() < length) {
            throw Incomplete.INSTANCE;
        }
        return length;
    }

    private String readText(final ByteBuf in) {
        return text(in, checkedLength(in));
    }

    private static String text(final ByteBuf in, final int length) {
        if (in.readableBytes() < length) {
            throw Incomplete.INSTANCE;
        }
        if (length == 0) {
            return "";
        }
        final String text = in.toString(in.readerIndex(), length, StandardCharsets.UTF_8);
        in.skipBytes(length);
        return text;
    }
}
