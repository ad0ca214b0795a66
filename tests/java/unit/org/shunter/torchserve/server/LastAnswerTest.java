package org.shunter.torchserve.server;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.netty.buffer.Unpooled;
import io.netty.channel.embedded.EmbeddedChannel;
import io.netty.handler.codec.http.DefaultFullHttpRequest;
import io.netty.handler.codec.http.DefaultFullHttpResponse;
import io.netty.handler.codec.http.DefaultHttpContent;
import io.netty.handler.codec.http.DefaultHttpResponse;
import io.netty.handler.codec.http.DefaultLastHttpContent;
import io.netty.handler.codec.http.FullHttpRequest;
import io.netty.handler.codec.http.HttpHeaderNames;
import io.netty.handler.codec.http.HttpMethod;
import io.netty.handler.codec.http.HttpResponse;
import io.netty.handler.codec.http.HttpResponseStatus;
import io.netty.handler.codec.http.HttpVersion;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

final class LastAnswerTest {
    private final EmbeddedChannel channel = new EmbeddedChannel(new LastAnswer());

    private void ask(final String version, final String connection) {
        final FullHttpRequest request =
                new DefaultFullHttpRequest(
                        HttpVersion.valueOf(version), HttpMethod.POST, "/", Unpooled.buffer(1).writeByte(1));
        if (connection != null) {
            request.headers().set(HttpHeaderNames.CONNECTION, connection);
        }
        channel.writeInbound(request);
    }

    private String answer(final HttpResponseStatus status) {
        channel.writeOutbound(new DefaultFullHttpResponse(HttpVersion.HTTP_1_1, status));
        final HttpResponse sent = channel.readOutbound();
        return sent.headers().get(HttpHeaderNames.CONNECTION);
    }

    @ParameterizedTest
    @CsvSource(
            value = {
                "HTTP/1.1, null, false",
                "HTTP/1.1, keep-alive, false",
                "HTTP/1.1, close, true",
                "HTTP/1.1, Close, true",
                "HTTP/1.0, null, true",
                "HTTP/1.0, keep-alive, false"
            },
            nullValues = "null")
    void theConnectionEndsAfterTheAnswerWhereTheClientSaysSo(
            final String version, final String connection, final boolean ends) {
        ask(version, connection);
        assertTrue(channel.isOpen());
        assertEquals(ends ? "close" : null, answer(HttpResponseStatus.OK));
        assertEquals(!ends, channel.isOpen());
    }

    @Test
    void allAnswersThatAreDueAreSentFirst() {
        ask("HTTP/1.1", null);
        ask("HTTP/1.1", "close");
        assertNull(answer(HttpResponseStatus.OK));
        assertTrue(channel.isOpen());
        assertEquals("close", answer(HttpResponseStatus.SERVICE_UNAVAILABLE));
        assertFalse(channel.isOpen());
    }

    @Test
    void whatFollowsTheLastRequestIsNotRead() {
        ask("HTTP/1.1", "close");
        assertEquals(1, channel.inboundMessages().size());
        final FullHttpRequest late =
                new DefaultFullHttpRequest(
                        HttpVersion.HTTP_1_1, HttpMethod.POST, "/", Unpooled.buffer(1).writeByte(1));
        channel.writeInbound(late);
        assertEquals(1, channel.inboundMessages().size());
        assertEquals(0, late.refCnt());
    }

    @Test
    void aStreamedAnswerIsSentWhole() {
        ask("HTTP/1.1", "close");
        channel.writeOutbound(new DefaultHttpResponse(HttpVersion.HTTP_1_1, HttpResponseStatus.OK));
        channel.writeOutbound(new DefaultHttpContent(Unpooled.EMPTY_BUFFER));
        assertTrue(channel.isOpen());
        channel.writeOutbound(new DefaultLastHttpContent());
        assertFalse(channel.isOpen());
    }

    @Test
    void anInterimAnswerIsNotTheLast() {
        ask("HTTP/1.1", "close");
        assertNull(answer(HttpResponseStatus.CONTINUE));
        assertTrue(channel.isOpen());
        answer(HttpResponseStatus.OK);
        assertFalse(channel.isOpen());
    }
}
