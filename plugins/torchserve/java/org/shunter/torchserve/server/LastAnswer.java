package org.shunter.torchserve.server;

import io.netty.channel.ChannelDuplexHandler;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelPromise;
import io.netty.channel.socket.DuplexChannel;
import io.netty.handler.codec.http.HttpRequest;
import io.netty.handler.codec.http.HttpResponse;
import io.netty.handler.codec.http.HttpStatusClass;
import io.netty.handler.codec.http.HttpUtil;
import io.netty.handler.codec.http.LastHttpContent;
import io.netty.handler.ssl.SslHandler;
import io.netty.util.ReferenceCountUtil;

/**
 * Ends a connection after the answer to a request with {@code Connection: close}, or of HTTP/1.0
 * without {@code keep-alive} (RFC 9112, 9.6). TorchServe keeps it open whatever the client says.
 */
final class LastAnswer extends ChannelDuplexHandler {
    static final String NAME = "shunter-last-answer";

    /** Answers that are due, to requests of a client that may have sent several ahead. */
    private int due;

    /** After the answers that are due nothing follows. */
    private boolean ends;

    /** All of the last request is here. */
    private boolean hasAll;

    @Override
    public void channelRead(final ChannelHandlerContext context, final Object message) {
        if (hasAll) {
            ReferenceCountUtil.release(message);
            return;
        }
        if (message instanceof HttpRequest request) {
            due++;
            ends = !HttpUtil.isKeepAlive(request);
        }
        hasAll = ends && message instanceof LastHttpContent;
        context.fireChannelRead(message);
    }

    @Override
    public void write(
            final ChannelHandlerContext context, final Object message, final ChannelPromise promise) {
        if (message instanceof HttpResponse answer) {
            if (answer.status().codeClass() == HttpStatusClass.INFORMATIONAL) {
                context.write(message, promise);
                return;
            }
            if (ends && due == 1) {
                HttpUtil.setKeepAlive(answer, false);
            }
        }
        if (message instanceof LastHttpContent && due > 0 && --due == 0 && ends) {
            context.write(message, promise.unvoid()).addListener(written -> end(context));
        } else {
            context.write(message, promise);
        }
    }

    /** TorchServe's connections have SO_LINGER 0: to close one loses what is on its way. */
    private static void end(final ChannelHandlerContext context) {
        final SslHandler tls = context.pipeline().get(SslHandler.class);
        if (tls == null) {
            shutDown(context);
        } else {
            tls.closeOutbound().addListener(said -> shutDown(context));
        }
    }

    private static void shutDown(final ChannelHandlerContext context) {
        if (context.channel() instanceof DuplexChannel channel) {
            channel.shutdownOutput();
        } else {
            context.close();
        }
    }
}
