package org.shunter.torchserve.server;

import static org.junit.jupiter.api.Assertions.assertEquals;

import io.netty.channel.ChannelInboundHandlerAdapter;
import io.netty.channel.embedded.EmbeddedChannel;
import io.netty.util.AttributeKey;
import java.nio.ByteBuffer;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.pytorch.serve.job.RestJob;
import org.pytorch.serve.util.messages.RequestInput;
import org.pytorch.serve.util.messages.WorkerCommands;
import org.shunter.torchserve.dispatch.Dispatcher;
import org.shunter.torchserve.dispatch.Reachable;
import org.shunter.torchserve.forming.RequestClass;
import org.shunter.torchserve.forming.Rerun;
import org.shunter.torchserve.host.TestHost;
import org.shunter.torchserve.page.Commands;
import org.shunter.torchserve.page.ControlLayout;
import org.shunter.torchserve.page.ControlPage;
import org.shunter.torchserve.page.ModelSlot;
import org.shunter.torchserve.preemption.Hold;
import org.shunter.torchserve.preemption.Turns;
import org.shunter.torchserve.queue.Entry;

/** What an HTTP connection knows of the requests that came by it. */
final class ClientConnectionTest {
    private final EmbeddedChannel channel = new EmbeddedChannel(new ChannelInboundHandlerAdapter());
    private final Dispatcher dispatcher = dispatcher();

    @BeforeAll
    static void configure() throws Exception {
        TestHost.common(); // a job asks for metrics
    }

    private static Dispatcher dispatcher() {
        final ControlPage page =
                new ControlPage(ByteBuffer.allocateDirect(ControlLayout.PAGE_SIZE));
        final ModelSlot slot = page.claim();
        return new Dispatcher(
                "m/1.0",
                slot,
                new Commands(slot),
                new Dispatcher.Limits(10, 0, 0, false),
                new Dispatcher.Shared(
                        (task, delay, unit) -> new CompletableFuture<>(),
                        new Hold(page),
                        new Turns(page),
                        System::nanoTime,
                        receivedNs -> {},
                        null));
    }

    private Entry watched() {
        final RestJob job =
                new RestJob(
                        channel.pipeline().firstContext(),
                        "m",
                        "1.0",
                        WorkerCommands.PREDICT,
                        new RequestInput("r"));
        final Entry entry =
                new Entry(job, RequestClass.STRICT, 0, Entry.NEVER, Rerun.AFTER_DEATH);
        ClientConnection.watch(entry, dispatcher);
        return entry;
    }

    @Test
    void aRequestWhoseClientHungUpIsAbandoned() {
        final Entry entry = watched();
        channel.close();
        assertEquals(Entry.Stage.DONE, entry.stage);
    }

    @Test
    void aConnectionThatIdlesKeepsNeitherItsLastRequestNorWhatServedIt() {
        watched();
        final ClientConnection connection =
                channel.attr(AttributeKey.<ClientConnection>valueOf(ClientConnection.class, "shunter"))
                        .get();
        assertEquals(
                List.of(),
                Reachable.from(
                        connection, each -> each instanceof Entry || each instanceof Dispatcher));
    }
}
