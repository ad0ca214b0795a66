package org.shunter.torchserve.server;

import io.netty.buffer.ByteBuf;
import io.netty.buffer.Unpooled;
import io.netty.channel.ChannelHandler.Sharable;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInboundHandlerAdapter;
import io.netty.handler.codec.http.DefaultFullHttpResponse;
import io.netty.handler.codec.http.FullHttpRequest;
import io.netty.handler.codec.http.FullHttpResponse;
import io.netty.handler.codec.http.HttpHeaderNames;
import io.netty.handler.codec.http.HttpMethod;
import io.netty.handler.codec.http.HttpResponseStatus;
import io.netty.handler.codec.http.HttpUtil;
import io.netty.handler.codec.http.HttpVersion;
import java.io.IOException;
import java.io.InputStream;

/**
 * The page {@code /shunter/}. It says nothing of this server, so it asks for no key: a browser has
 * no way to send one with its first request. What it shows it asks for by {@code /shunter/status},
 * with the key that its user gives.
 */
@Sharable
final class DashboardPage extends ChannelInboundHandlerAdapter {
    static final String NAME = "shunter-page";
    private static final String PATH = "/shunter/";
    private static final String POLICY =
            "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline';"
                    + " connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

    private final ByteBuf page;

    /** @throws IOException the jar has no page */
    DashboardPage() throws IOException {
        try (InputStream file = DashboardPage.class.getResourceAsStream("/dashboard.html")) {
            if (file == null) {
                throw new IOException("the jar has no dashboard.html");
            }
            page = Unpooled.unreleasableBuffer(Unpooled.wrappedBuffer(file.readAllBytes()).asReadOnly());
        }
    }

    @Override
    public void channelRead(final ChannelHandlerContext context, final Object message) {
        final FullHttpResponse answer =
                message instanceof FullHttpRequest request ? answer(request) : null;
        if (answer == null) {
            context.fireChannelRead(message);
            return;
        }
        final FullHttpRequest request = (FullHttpRequest) message;
        HttpUtil.setContentLength(answer, answer.content().readableBytes());
        HttpUtil.setKeepAlive(answer, HttpUtil.isKeepAlive(request));
        request.release();
        context.writeAndFlush(answer);
    }

    /** The answer to a request for the page; null: it is for something else. */
    private FullHttpResponse answer(final FullHttpRequest request) {
        final int query = request.uri().indexOf('?');
        final String path = query < 0 ? request.uri() : request.uri().substring(0, query);
        if (!request.method().equals(HttpMethod.GET)) {
            return null;
        }
        if (path.equals(PATH)) {
            final FullHttpResponse answer = of(HttpResponseStatus.OK, page.duplicate());
            answer.headers()
                    .set(HttpHeaderNames.CONTENT_TYPE, "text/html; charset=utf-8")
                    .set(HttpHeaderNames.CACHE_CONTROL, "no-cache")
                    .set("X-Content-Type-Options", "nosniff")
                    .set("Content-Security-Policy", POLICY);
            return answer;
        }
        if (path.equals(PATH.substring(0, PATH.length() - 1))) {
            final FullHttpResponse answer =
                    of(HttpResponseStatus.PERMANENT_REDIRECT, Unpooled.EMPTY_BUFFER);
            answer.headers().set(HttpHeaderNames.LOCATION, PATH);
            return answer;
        }
        return null;
    }

    private static FullHttpResponse of(final HttpResponseStatus status, final ByteBuf content) {
        return new DefaultFullHttpResponse(HttpVersion.HTTP_1_1, status, content);
    }
}
