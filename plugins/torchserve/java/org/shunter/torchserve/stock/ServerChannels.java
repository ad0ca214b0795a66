package org.shunter.torchserve.stock;

import io.netty.channel.Channel;
import io.netty.channel.ServerChannel;
import io.netty.channel.nio.NioEventLoop;
import io.netty.util.collection.IntObjectMap;
import io.netty.util.concurrent.EventExecutor;
import io.netty.util.concurrent.FastThreadLocal;
import io.netty.util.concurrent.FastThreadLocalThread;
import io.netty.util.internal.InternalThreadLocalMap;
import io.netty.util.internal.ThreadExecutorMap;
import java.lang.reflect.Field;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Consumer;

/**
 * The channels on which this server listens. TorchServe keeps them where no plugin comes, so they
 * are found by way of Netty's threads. Its fields are looked up as {@link StockFields} does it.
 */
public final class ServerChannels {
    private static final Field EXECUTORS = StockFields.field(ThreadExecutorMap.class, "mappings");
    private static final Field SELECTOR = StockFields.field(NioEventLoop.class, "unwrappedSelector");

    private ServerChannels() {}

    /** Netty's epoll loop is not public. */
    private static final class Epoll {
        static final Field CHANNELS = StockFields.field(loop(), "channels");

        private static Class<?> loop() {
            try {
                return Class.forName("io.netty.channel.epoll.EpollEventLoop");
            } catch (ClassNotFoundException e) {
                throw new IllegalStateException("Netty has no epoll loop", e);
            }
        }
    }

    /** Do something with each, on its own thread. */
    public static void forEach(final Consumer<ServerChannel> action) {
        for (final EventExecutor loop : loops()) {
            loop.execute(
                    () -> {
                        for (final Channel channel : channels(loop)) {
                            if (channel instanceof ServerChannel server) {
                                action.accept(server);
                            }
                        }
                    });
        }
    }

    private static List<EventExecutor> loops() {
        ThreadGroup root = Thread.currentThread().getThreadGroup();
        while (root.getParent() != null) {
            root = root.getParent();
        }
        final Thread[] threads = new Thread[2 * root.activeCount() + 16];
        final int count = root.enumerate(threads);
        final List<EventExecutor> loops = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            final EventExecutor loop = loopOf(threads[i]);
            if (loop != null && !loop.isShuttingDown()) {
                loops.add(loop);
            }
        }
        return loops;
    }

    @SuppressWarnings("unchecked")
    private static EventExecutor loopOf(final Thread thread) {
        if (!(thread instanceof FastThreadLocalThread netty)) {
            return null;
        }
        final InternalThreadLocalMap values = netty.threadLocalMap();
        final FastThreadLocal<EventExecutor> executor =
                (FastThreadLocal<EventExecutor>) StockFields.get(EXECUTORS, null);
        return values != null && executor.isSet(values) ? executor.get(values) : null;
    }

    private static List<Channel> channels(final EventExecutor loop) {
        final List<Channel> channels = new ArrayList<>();
        if (loop instanceof NioEventLoop nio) {
            for (final SelectionKey key : ((Selector) StockFields.get(SELECTOR, nio)).keys()) {
                if (key.attachment() instanceof Channel channel) {
                    channels.add(channel);
                }
            }
        } else if (Epoll.CHANNELS.getDeclaringClass().isInstance(loop)) {
            for (final Object channel :
                    ((IntObjectMap<?>) StockFields.get(Epoll.CHANNELS, loop)).values()) {
                channels.add((Channel) channel);
            }
        }
        return channels;
    }
}
