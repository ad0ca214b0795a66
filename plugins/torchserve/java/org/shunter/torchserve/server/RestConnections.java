package org.shunter.torchserve.server;

import io.netty.channel.AdaptiveRecvByteBufAllocator;
import io.netty.channel.Channel;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInboundHandlerAdapter;
import io.netty.channel.ChannelPipeline;
import io.netty.handler.codec.http.HttpServerCodec;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.Consumer;
import org.pytorch.serve.http.HttpRequestHandler;
import org.pytorch.serve.util.ConnectorType;
import org.shunter.torchserve.host.Host;
import org.shunter.torchserve.stock.ServerChannels;

/** Adds to what TorchServe puts into its REST connections. */
public final class RestConnections {
    /** TorchServe's handler of requests. */
    static final String STOCK = "handler";

    private static final String CODEC = "http";
    private static final int LOOK_MS = 20;
    /** Largest first line and header block, as in TorchServe's codec. */
    private static final int LINE_BYTES = 4096;

    private static final int HEADER_BYTES = 8192;
    /** Of a body, what is read at once, and handed on as one piece. TorchServe reads 4 KB: a body of
     * 100 KB takes 25 calls, and passes as often through all handlers. */
    private static final int PIECE_BYTES = 1 << 16;

    private static final int FIRST_READ_BYTES = 4096;
    private static final int LEAST_READ_BYTES = 1024;

    private RestConnections() {}

    /** Large bodies come in fewer pieces, and are not copied. */
    public static void install(final Host host) {
        furnish(
                host,
                ConnectorType.INFERENCE_CONNECTOR,
                "shunter-inference",
                pipeline -> {
                    pipeline.channel()
                            .config()
                            .setRecvByteBufAllocator(
                                    new AdaptiveRecvByteBufAllocator(
                                            LEAST_READ_BYTES, FIRST_READ_BYTES, PIECE_BYTES));
                    if (pipeline.get(CODEC) instanceof HttpServerCodec) {
                        pipeline.replace(
                                CODEC,
                                CODEC,
                                new HttpServerCodec(LINE_BYTES, HEADER_BYTES, PIECE_BYTES));
                    }
                    pipeline.addBefore(STOCK, LargeBodies.NAME, LargeBodies.HANDLER);
                });
    }

    /**
     * Each new connection to that connector, as soon as the server listens there; {@code Connection:
     * close} is heeded at all of them.
     */
    static void furnish(
            final Host host,
            final ConnectorType connector,
            final String name,
            final Consumer<ChannelPipeline> action) {
        final SocketAddress address = host.config().getListener(connector).getSocketAddress();
        look(host, address, new Accepted(name, action), new AtomicBoolean());
    }

    private static void look(
            final Host host,
            final SocketAddress address,
            final Accepted accepted,
            final AtomicBoolean installed) {
        if (installed.get()) {
            return;
        }
        ServerChannels.forEach(
                server -> {
                    if (listensAt(server.localAddress(), address) && installed.compareAndSet(false, true)) {
                        server.pipeline().addFirst(accepted.name, accepted);
                    }
                });
        host.timer()
                .schedule(() -> look(host, address, accepted, installed), LOOK_MS, TimeUnit.MILLISECONDS);
    }

    /** Where one socket listens at all addresses, its port is no other's. */
    static boolean listensAt(final SocketAddress own, final SocketAddress wanted) {
        return wanted.equals(own)
                || own instanceof InetSocketAddress mine
                        && wanted instanceof InetSocketAddress asked
                        && mine.getPort() == asked.getPort()
                        && mine.getAddress().isAnyLocalAddress();
    }

    /** At the channel that accepts connections. */
    private static final class Accepted extends ChannelInboundHandlerAdapter {
        private final String name;
        private final Consumer<ChannelPipeline> action;

        Accepted(final String name, final Consumer<ChannelPipeline> action) {
            this.name = name;
            this.action = action;
        }

        @Override
        public void channelRead(final ChannelHandlerContext context, final Object message) {
            ((Channel) message).pipeline().addLast(new Opened(action));
            context.fireChannelRead(message);
        }
    }

    /** At a connection that TorchServe has not furnished yet; when it opens, it has. */
    private static final class Opened extends ChannelInboundHandlerAdapter {
        private final Consumer<ChannelPipeline> action;

        Opened(final Consumer<ChannelPipeline> action) {
            this.action = action;
        }

        @Override
        public void channelActive(final ChannelHandlerContext context) {
            if (context.pipeline().get(STOCK) instanceof HttpRequestHandler) {
                action.accept(context.pipeline());
                if (context.pipeline().get(LastAnswer.NAME) == null) { // else of two connectors
                    context.pipeline().addAfter(CODEC, LastAnswer.NAME, new LastAnswer());
                }
            }
            context.pipeline().remove(this);
            context.fireChannelActive();
        }
    }
}
