package org.shunter.torchserve.server;

import io.netty.buffer.ByteBuf;
import io.netty.buffer.Unpooled;
import io.netty.channel.ChannelHandler.Sharable;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInboundHandlerAdapter;
import io.netty.handler.codec.http.FullHttpRequest;
import io.netty.handler.codec.http.HttpHeaderValues;
import io.netty.handler.codec.http.HttpMethod;
import io.netty.handler.codec.http.HttpUtil;
import io.netty.handler.codec.http.QueryStringDecoder;
import io.netty.handler.codec.http.multipart.HttpPostRequestDecoder;
import io.netty.util.concurrent.FastThreadLocal;
import java.util.List;
import org.pytorch.serve.archive.model.ModelVersionNotFoundException;
import org.pytorch.serve.job.Job;
import org.pytorch.serve.util.messages.InputParameter;
import org.pytorch.serve.wlm.Model;
import org.pytorch.serve.wlm.ModelManager;
import org.shunter.torchserve.stock.ReceivedBody;
import org.shunter.torchserve.stock.StockFields;

/**
 * Leads the large body of a prediction around TorchServe's handler of requests, which would copy it.
 * The handler sees an empty one, checks all that it checks, and offers the request to the model's
 * queue before it returns, on the same thread: there it gets its body again.
 */
@Sharable
final class LargeBodies extends ChannelInboundHandlerAdapter {
    static final String NAME = "shunter-large-bodies";
    static final LargeBodies HANDLER = new LargeBodies();

    private static final String PREDICTIONS = "predictions";
    private static final String BODY = "body";

    /** What the handler that runs on this thread was not shown. */
    private static final FastThreadLocal<ByteBuf> ASIDE = new FastThreadLocal<>();

    private LargeBodies() {}

    @Override
    public void channelRead(final ChannelHandlerContext context, final Object message) {
        if (!(message instanceof FullHttpRequest request) || !goesToAQueueOfOurs(request)) {
            context.fireChannelRead(message);
            return;
        }
        final FullHttpRequest shown = request.replace(Unpooled.EMPTY_BUFFER);
        ASIDE.set(request.content());
        try {
            context.fireChannelRead(shown);
        } finally {
            final ByteBuf unclaimed = ASIDE.get();
            if (unclaimed != null) { // it was refused
                ASIDE.remove();
                unclaimed.release();
            }
        }
    }

    /** What TorchServe would copy into one parameter and offer to a {@link JobQueue}. */
    private static boolean goesToAQueueOfOurs(final FullHttpRequest request) {
        return ReceivedBody.isWorthIt(request.content())
                && request.decoderResult().isSuccess()
                && HttpMethod.POST.equals(request.method())
                && !isForm(request)
                && isServed(new QueryStringDecoder(request.uri()).path().split("/"));
    }

    private static boolean isForm(final FullHttpRequest request) {
        return HttpPostRequestDecoder.isMultipart(request)
                || HttpHeaderValues.APPLICATION_X_WWW_FORM_URLENCODED.contentEqualsIgnoreCase(
                        HttpUtil.getMimeType(request));
    }

    /** {@code /predictions/<model>} or {@code /predictions/<model>/<version>}. */
    private static boolean isServed(final String[] segments) {
        if (segments.length < 3 || segments.length > 4 || !PREDICTIONS.equals(segments[1])) {
            return false;
        }
        try {
            final Model model =
                    ModelManager.getInstance()
                            .getModel(segments[2], segments.length == 4 ? segments[3] : null);
            return model != null
                    && !model.isSequenceBatching()
                    && StockFields.dataQueue(model) instanceof JobQueue;
        } catch (ModelVersionNotFoundException e) {
            return false; // TorchServe says so
        }
    }

    /** A request that is being offered gets the body that TorchServe's handler was not shown. */
    static void giveBack(final Job job) {
        final ByteBuf aside = ASIDE.getIfExists();
        if (aside == null) {
            return;
        }
        final List<InputParameter> parameters = job.getPayload().getParameters();
        final int last = parameters.size() - 1;
        final InputParameter empty = last < 0 ? null : parameters.get(last);
        if (empty != null && BODY.equals(empty.getName()) && empty.getValue().length == 0) {
            parameters.set(last, new ReceivedBody(BODY, empty.getContentType(), aside));
            ASIDE.remove();
        }
    }
}
