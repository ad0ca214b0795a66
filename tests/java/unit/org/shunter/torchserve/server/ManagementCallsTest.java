package org.shunter.torchserve.server;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.embedded.EmbeddedChannel;
import io.netty.handler.codec.http.DefaultFullHttpRequest;
import io.netty.handler.codec.http.FullHttpRequest;
import io.netty.handler.codec.http.HttpMethod;
import io.netty.handler.codec.http.HttpVersion;
import java.net.InetSocketAddress;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.List;
import java.util.Queue;
import java.util.concurrent.RejectedExecutionException;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.pytorch.serve.http.HttpRequestHandler;

/** Management calls run elsewhere; the requests of a connection keep their order. */
final class ManagementCallsTest {
    private final Queue<Runnable> elsewhere = new ArrayDeque<>();
    private final List<String> run = new ArrayList<>();
    private boolean noThread;
    private final EmbeddedChannel channel = new EmbeddedChannel(new ManagementCalls(this::execute));

    ManagementCallsTest() {
        channel.pipeline()
                .addLast(
                        "handler",
                        new HttpRequestHandler() {
                            @Override
                            protected void channelRead0(
                                    final ChannelHandlerContext context,
                                    final FullHttpRequest request) {
                                run.add(request.uri());
                                if (request.uri().endsWith("/fails")) {
                                    throw new IllegalStateException("told to fail");
                                }
                            }
                        });
    }

    private void execute(final Runnable task) {
        if (noThread) {
            throw new RejectedExecutionException("told to");
        }
        elsewhere.add(task);
    }

    private FullHttpRequest request(final String uri) {
        final FullHttpRequest request =
                new DefaultFullHttpRequest(HttpVersion.HTTP_1_1, HttpMethod.PUT, uri);
        channel.writeInbound(request);
        return request;
    }

    private void runElsewhere() {
        elsewhere.remove().run();
        channel.runPendingTasks();
    }

    @Test
    void whatMayWaitRunsElsewhereAndWhatFollowsWaitsForIt() {
        final FullHttpRequest scale = request("/models/x?synchronous=true");
        final FullHttpRequest ping = request("/ping");
        request("/models/y");
        assertEquals(List.of(), run);
        assertFalse(channel.config().isAutoRead());
        assertEquals(1, elsewhere.size());
        runElsewhere();
        assertEquals(List.of("/models/x?synchronous=true", "/ping"), run);
        assertEquals(List.of(0, 0), List.of(scale.refCnt(), ping.refCnt()));
        runElsewhere();
        assertEquals("/models/y", run.get(2));
        assertTrue(channel.config().isAutoRead());
        request("/predictions/x");
        assertEquals("/predictions/x", run.get(3));
        assertTrue(elsewhere.isEmpty());
    }

    /** Stock's handler answers what it expects, and closes the connection after anything else. */
    @Test
    void aCallThatFailsUnexpectedlyEndsTheConnectionAndLeavesNothingBehind() {
        final FullHttpRequest first = request("/models/fails");
        final FullHttpRequest second = request("/models/y");
        runElsewhere();
        assertFalse(channel.isOpen());
        assertEquals(List.of("/models/fails"), run);
        assertEquals(List.of(0, 0), List.of(first.refCnt(), second.refCnt()));
    }

    @Test
    void aConnectionThatClosesLeavesNothingBehind() {
        final FullHttpRequest first = request("/models/x");
        final FullHttpRequest second = request("/models/y");
        channel.close();
        runElsewhere();
        assertEquals(List.of(0, 0), List.of(first.refCnt(), second.refCnt()));
    }

    @Test
    void aCallThatGetsNoThreadRunsWhereItIs() {
        noThread = true;
        request("/models/x");
        request("/ping");
        assertEquals(List.of("/models/x", "/ping"), run);
        assertTrue(channel.config().isAutoRead());
        noThread = false;
        request("/models/y");
        runElsewhere();
        assertEquals("/models/y", run.get(2));
    }

    @ParameterizedTest
    @CsvSource({
        "127.0.0.1, 8081, 127.0.0.1, 8081, true",
        "127.0.0.1, 8080, 127.0.0.2, 8080, false",
        "127.0.0.1, 8080, 127.0.0.1, 8081, false",
        "0.0.0.0, 8081, 0.0.0.0, 8081, true",
        "::, 8081, 0.0.0.0, 8081, true",
        "::, 8080, 0.0.0.0, 8081, false"
    })
    void theSocketIsFoundByAddressAndPort(
            final String own, final int port, final String wanted, final int at, final boolean is) {
        assertEquals(
                is,
                RestConnections.listensAt(
                        new InetSocketAddress(own, port), new InetSocketAddress(wanted, at)));
    }

    @Test
    void inferenceStaysWhereItIs() {
        for (final String uri : List.of("/predictions/x", "/models/x/invoke", "/ping", "/shunter/s")) {
            assertFalse(ManagementCalls.mayWait(uri), uri);
        }
        for (final String uri : List.of("/models", "/models?url=x", "/models/x/1.0", "/workflows/w")) {
            assertTrue(ManagementCalls.mayWait(uri), uri);
        }
    }
}
