package org.shunter.torchserve.server;

import io.netty.channel.Channel;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInboundHandlerAdapter;
import io.netty.handler.codec.http.FullHttpRequest;
import io.netty.util.ReferenceCountUtil;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.util.ArrayDeque;
import java.util.concurrent.Executor;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import org.pytorch.serve.http.HttpRequestHandler;
import org.pytorch.serve.util.ConnectorType;
import org.shunter.torchserve.host.Host;
import org.shunter.torchserve.stock.ServerChannels;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Runs TorchServe's management calls on threads that may wait. Stock runs them on a thread that
 * also serves clients' connections, and those stand still while workers load or end.
 *
 * <p>One per connection; its next request waits until the call has been answered.
 */
public final class ManagementCalls extends ChannelInboundHandlerAdapter {
    private static final Logger LOGGER = LoggerFactory.getLogger(ManagementCalls.class);
    private static final String STOCK = "handler";
    private static final String OURS = "shunter-management";
    private static final int LOOK_MS = 20;

    private final Executor pool;
    private final ArrayDeque<Object> waiting = new ArrayDeque<>();
    private boolean busy;

    ManagementCalls(final Executor pool) {
        this.pool = pool;
    }

    /** Take them over as soon as the server listens for them. */
    public static void install(final Host host) {
        final SocketAddress address =
                host.config().getListener(ConnectorType.MANAGEMENT_CONNECTOR).getSocketAddress();
        look(host, address, new AtomicBoolean());
    }

    private static void look(
            final Host host, final SocketAddress address, final AtomicBoolean installed) {
        if (installed.get()) {
            return;
        }
        ServerChannels.forEach(
                server -> {
                    if (listensAt(server.localAddress(), address) && installed.compareAndSet(false, true)) {
                        server.pipeline().addFirst(OURS, new Accepted(host::execute, page()));
                    }
                });
        host.timer().schedule(() -> look(host, address, installed), LOOK_MS, TimeUnit.MILLISECONDS);
    }

    /** Null: a jar that has none serves without. */
    private static DashboardPage page() {
        try {
            return new DashboardPage();
        } catch (IOException e) {
            LOGGER.warn("No page at /shunter/: {}", e.getMessage());
            return null;
        }
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
        private final Executor pool;
        private final DashboardPage page;

        Accepted(final Executor pool, final DashboardPage page) {
            this.pool = pool;
            this.page = page;
        }

        @Override
        public void channelRead(final ChannelHandlerContext context, final Object message) {
            ((Channel) message).pipeline().addLast(new Opened(pool, page));
            context.fireChannelRead(message);
        }
    }

    /** At a connection that TorchServe has not furnished yet; when it opens, it has. */
    private static final class Opened extends ChannelInboundHandlerAdapter {
        private final Executor pool;
        private final DashboardPage page;

        Opened(final Executor pool, final DashboardPage page) {
            this.pool = pool;
            this.page = page;
        }

        @Override
        public void channelActive(final ChannelHandlerContext context) {
            if (context.pipeline().get(STOCK) instanceof HttpRequestHandler) {
                context.pipeline().addBefore(STOCK, OURS, new ManagementCalls(pool));
                if (page != null) {
                    context.pipeline().addBefore(STOCK, DashboardPage.NAME, page);
                }
            }
            context.pipeline().remove(this);
            context.fireChannelActive();
        }
    }

    @Override
    public void channelRead(final ChannelHandlerContext context, final Object message) {
        if (busy) {
            waiting.add(message);
        } else if (message instanceof FullHttpRequest request && mayWait(request.uri())) {
            runElsewhere(context, request);
        } else {
            context.fireChannelRead(message);
        }
    }

    private void runElsewhere(final ChannelHandlerContext context, final FullHttpRequest request) {
        busy = true;
        context.channel().config().setAutoRead(false);
        try {
            pool.execute(() -> run(context, request));
        } catch (RejectedExecutionException | OutOfMemoryError e) { // no thread: here, as stock does
            busy = false;
            context.fireChannelRead(request);
            context.channel().config().setAutoRead(true);
        }
    }

    /** Everything about models and workflows, but inference, which may come to the same port. */
    static boolean mayWait(final String uri) {
        final int query = uri.indexOf('?');
        final String path = query < 0 ? uri : uri.substring(0, query);
        return (path.startsWith("/models") || path.startsWith("/workflows"))
                && !path.endsWith("/invoke");
    }

    private void run(final ChannelHandlerContext context, final FullHttpRequest request) {
        final ChannelHandlerContext stock = context.pipeline().context(STOCK);
        try {
            if (stock == null) { // the connection is gone
                request.release();
            } else {
                ((HttpRequestHandler) stock.handler()).channelRead(stock, request);
            }
        } catch (Exception e) { // as Netty would have told it
            context.fireExceptionCaught(e);
        } finally {
            context.executor().execute(() -> goOn(context));
        }
    }

    private void goOn(final ChannelHandlerContext context) {
        busy = false;
        while (!busy && !waiting.isEmpty()) {
            channelRead(context, waiting.poll());
        }
        if (!busy) {
            context.channel().config().setAutoRead(true);
        }
    }

    @Override
    public void channelInactive(final ChannelHandlerContext context) {
        waiting.forEach(ReferenceCountUtil::release);
        waiting.clear();
        context.fireChannelInactive();
    }
}
