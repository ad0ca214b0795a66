package org.shunter.torchserve.server;

import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInboundHandlerAdapter;
import io.netty.handler.codec.http.FullHttpRequest;
import io.netty.util.ReferenceCountUtil;
import java.io.IOException;
import java.util.ArrayDeque;
import java.util.concurrent.Executor;
import java.util.concurrent.RejectedExecutionException;
import org.pytorch.serve.http.HttpRequestHandler;
import org.pytorch.serve.util.ConnectorType;
import org.shunter.torchserve.host.Host;
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
    private static final String OURS = "shunter-management";

    private final Executor pool;
    private final ArrayDeque<Object> waiting = new ArrayDeque<>();
    private boolean busy;

    ManagementCalls(final Executor pool) {
        this.pool = pool;
    }

    /** Take them over as soon as the server listens for them. */
    public static void install(final Host host) {
        final DashboardPage page = page();
        RestConnections.furnish(
                host,
                ConnectorType.MANAGEMENT_CONNECTOR,
                OURS,
                pipeline -> {
                    pipeline.addBefore(RestConnections.STOCK, OURS, new ManagementCalls(host::execute));
                    if (page != null) {
                        pipeline.addBefore(RestConnections.STOCK, DashboardPage.NAME, page);
                    }
                });
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
        final ChannelHandlerContext stock = context.pipeline().context(RestConnections.STOCK);
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
