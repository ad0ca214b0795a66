package org.shunter.torchserve.server;

import io.grpc.stub.ServerCallStreamObserver;
import io.netty.channel.Channel;
import io.netty.channel.ChannelHandlerContext;
import io.netty.util.Attribute;
import io.netty.util.AttributeKey;
import java.lang.ref.WeakReference;
import java.util.ArrayDeque;
import org.pytorch.serve.job.GRPCJob;
import org.pytorch.serve.job.RestJob;
import org.shunter.torchserve.dispatch.Dispatcher;
import org.shunter.torchserve.queue.Entry;
import org.shunter.torchserve.stock.StockFields;

/** Notices that a client hung up, so that its waiting request leaves the queue. */
final class ClientConnection {
    private static final AttributeKey<ClientConnection> KEY =
            AttributeKey.valueOf(ClientConnection.class, "shunter");
    /** Pipelined requests on one connection; older ones are forgotten, which only costs work. */
    private static final int MAX_WATCHED = 64;

    /**
     * A request is kept alive by the queue or the batch that it is in. A connection that waits for
     * its next request must keep neither the body of the last one nor what served it: that model
     * may be unregistered.
     */
    private static final class Watched extends WeakReference<Entry> {
        private final WeakReference<Dispatcher> dispatcher;

        Watched(final Entry entry, final WeakReference<Dispatcher> dispatcher) {
            super(entry);
            this.dispatcher = dispatcher;
        }

        boolean isDone() {
            final Entry entry = get();
            return entry == null || entry.isOver();
        }

        void abandon() {
            final Entry entry = get();
            final Dispatcher asked = dispatcher.get();
            if (entry != null && asked != null) {
                asked.abandon(entry);
            }
        }
    }

    private final ArrayDeque<Watched> watched = new ArrayDeque<>(2);

    private ClientConnection() {}

    /** Watch the client of a request that is about to be offered. */
    static void watch(final Entry entry, final Dispatcher dispatcher) {
        if (entry.job instanceof RestJob job) {
            final ChannelHandlerContext context = StockFields.context(job);
            if (context != null) {
                of(context.channel()).add(new Watched(entry, dispatcher.reference));
            }
        } else if (entry.job instanceof GRPCJob job) {
            final ServerCallStreamObserver<?> call = StockFields.call(job);
            if (call != null) {
                watchCall(call, entry, dispatcher);
            }
        }
    }

    private static void watchCall(
            final ServerCallStreamObserver<?> call,
            final Entry entry,
            final Dispatcher dispatcher) {
        final Runnable stock = StockFields.cancelHandler(call);
        try {
            call.setOnCancelHandler(
                    () -> {
                        dispatcher.abandon(entry);
                        if (stock != null) {
                            stock.run(); // says so in the log and ends the call
                        }
                    });
        } catch (IllegalStateException e) {
            // A message of a stream that began earlier: gRPC takes no handler any more, and the
            // answer of a cancelled call is dropped when it comes.
            return;
        }
        if (call.isCancelled()) {
            dispatcher.abandon(entry);
        }
    }

    private static ClientConnection of(final Channel channel) {
        final Attribute<ClientConnection> attribute = channel.attr(KEY);
        final ClientConnection known = attribute.get();
        if (known != null) {
            return known;
        }
        final ClientConnection fresh = new ClientConnection();
        final ClientConnection raced = attribute.setIfAbsent(fresh);
        if (raced != null) {
            return raced;
        }
        channel.closeFuture().addListener(future -> fresh.onClosed());
        return fresh;
    }

    private synchronized void add(final Watched request) {
        while (!watched.isEmpty()
                && (watched.peekFirst().isDone() || watched.size() >= MAX_WATCHED)) {
            watched.pollFirst();
        }
        watched.addLast(request);
    }

    private synchronized void onClosed() {
        watched.forEach(Watched::abandon);
        watched.clear();
    }
}
