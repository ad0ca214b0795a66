package org.shunter.torchserve.worker;

import static org.junit.jupiter.api.Assertions.assertEquals;

import io.netty.buffer.ByteBuf;
import io.netty.buffer.Unpooled;
import io.netty.channel.embedded.EmbeddedChannel;
import java.nio.charset.StandardCharsets;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.shunter.torchserve.dispatch.Reachable;
import org.shunter.torchserve.queue.Reply;

/** Replies from the bytes of a worker. */
final class ReplyDecoderTest {
    private static void text(final ByteBuf to, final String text) {
        final byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
        to.writeInt(bytes.length).writeBytes(bytes);
    }

    private static ByteBuf reply(final String body) {
        final ByteBuf bytes = Unpooled.buffer();
        bytes.writeInt(200);
        text(bytes, "done");
        text(bytes, "id");
        text(bytes, "text/plain");
        bytes.writeInt(200);
        text(bytes, "OK");
        bytes.writeInt(0); // headers
        text(bytes, body);
        bytes.writeInt(-1);
        return bytes;
    }

    @Test
    void aReplyInAnyTwoPiecesIsReadAndNothingOfItIsKept() {
        final ReplyDecoder decoder = new ReplyDecoder(1 << 20);
        final EmbeddedChannel channel = new EmbeddedChannel(decoder);
        final int length = reply("body").readableBytes();
        for (int cut = 1; cut < length; cut++) {
            final ByteBuf whole = reply("body");
            channel.writeInbound(whole.copy(0, cut), whole.copy(cut, length - cut));
            final Reply read = channel.readInbound();
            assertEquals("done", read.message());
            assertEquals("body", new String(read.predictions().get(0).body(), StandardCharsets.UTF_8));
            assertEquals(
                    List.of(),
                    Reachable.from(decoder, each -> each instanceof Reply.Prediction),
                    "cut after " + cut);
        }
    }
}
