package org.shunter.torchserve.worker;

import io.netty.bootstrap.Bootstrap;
import io.netty.buffer.ByteBuf;
import io.netty.buffer.ByteBufAllocator;
import io.netty.channel.Channel;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInitializer;
import io.netty.channel.EventLoopGroup;
import io.netty.channel.PreferHeapByteBufAllocator;
import io.netty.channel.SimpleChannelInboundHandler;
import java.io.IOException;
import org.pytorch.serve.util.ConfigManager;
import org.shunter.torchserve.host.WorkerAddress;
import org.shunter.torchserve.queue.Reply;

/** The byte stream to a worker process: buffers out, replies in. It knows nothing of any model. */
final class WorkerConnection {
    /** Who hears what the worker says; called on the connection's event loop. */
    interface Listener {
        void onReply(Reply reply);

        /** The stream ended; nothing more comes. */
        void onClosed(String cause);
    }

    /** {@code prefer_direct_buffer=false}; TorchServe's own default, but not ours. */
    private static final boolean PREFERS_HEAP =
            "false".equalsIgnoreCase(
                    ConfigManager.getInstance().getProperty("prefer_direct_buffer", ""));

    private final Channel channel;

    private WorkerConnection(final Channel channel) {
        this.channel = channel;
    }

    /** Connect; replies go to the listener from now on. */
    static WorkerConnection open(
            final EventLoopGroup group,
            final WorkerAddress address,
            final int maxResponse,
            final Listener listener)
            throws IOException, InterruptedException {
        final Bootstrap bootstrap =
                new Bootstrap()
                        .group(group)
                        .channel(address.channelClass())
                        .handler(
                                new ChannelInitializer<Channel>() {
                                    @Override
                                    public void initChannel(final Channel ch) {
                                        ch.pipeline()
                                                .addLast(
                                                        new ReplyDecoder(maxResponse),
                                                        new Receiver(listener));
                                    }
                                });
        try {
            return new WorkerConnection(
                    bootstrap.connect(address.socketAddress()).sync().channel());
        } catch (InterruptedException e) {
            throw e;
        } catch (Exception e) { // Netty throws checked exceptions without declaring them
            throw new IOException("connecting to " + address.socketAddress() + ": " + e, e);
        }
    }

    /** Run on the connection's thread: at once when this is it. */
    void execute(final Runnable task) {
        if (channel.eventLoop().inEventLoop()) {
            task.run();
        } else {
            channel.eventLoop().execute(task);
        }
    }

    /** Whether the stream has not ended. */
    boolean isOpen() {
        return channel.isActive();
    }

    /** Buffers outside the heap, where the channel takes them as they are, unless told not to. */
    ByteBufAllocator allocator() {
        return PREFERS_HEAP ? new PreferHeapByteBufAllocator(channel.alloc()) : channel.alloc();
    }

    /** Send a message; a failed write shows as a closed connection. */
    void write(final ByteBuf message) {
        channel.writeAndFlush(message, channel.voidPromise());
    }

    void close() {
        channel.close();
    }

    private static final class Receiver extends SimpleChannelInboundHandler<Reply> {
        private final Listener listener;
        private String cause = "the connection closed";

        Receiver(final Listener listener) {
            this.listener = listener;
        }

        @Override
        protected void channelRead0(final ChannelHandlerContext context, final Reply reply) {
            listener.onReply(reply);
        }

        @Override
        public void channelInactive(final ChannelHandlerContext context) {
            listener.onClosed(cause);
        }

        @Override
        public void exceptionCaught(final ChannelHandlerContext context, final Throwable error) {
            final Throwable root = error.getCause() == null ? error : error.getCause();
            cause = root.getMessage() == null ? root.toString() : root.getMessage();
            context.close();
        }
    }
}
