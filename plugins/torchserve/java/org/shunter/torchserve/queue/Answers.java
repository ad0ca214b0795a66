package org.shunter.torchserve.queue;

import com.google.gson.JsonObject;
import io.netty.channel.ChannelHandlerContext;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.pytorch.serve.job.Job;
import org.pytorch.serve.job.RestJob;
import org.pytorch.serve.util.messages.RequestInput;
import org.shunter.torchserve.stock.ReceivedBody;
import org.shunter.torchserve.stock.StockFields;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Sends answers to clients. An answer that fails never touches the others. */
public final class Answers {
    private static final Logger LOGGER = LoggerFactory.getLogger(Answers.class);

    private Answers() {}

    /** Whether a reply is one part of a streamed answer and more parts follow. */
    public static boolean isPartial(final Reply reply) {
        return reply.code() == 200
                && !reply.predictions().isEmpty()
                && "true".equals(
                        reply.predictions().get(0).headers().get(RequestInput.TS_STREAM_NEXT));
    }

    /**
     * Answer the requests of a batch, in any order; every one gets exactly one final answer. Those
     * that expired have theirs.
     */
    static void deliver(final Batch batch, final Reply reply) {
        if (!isPartial(reply)) { // its worker has read them
            batch.entries.forEach(entry -> ReceivedBody.release(entry.job));
        }
        if (reply.code() != 200) {
            batch.entries.forEach(entry -> failed(entry, reply.code(), reply.message()));
            return;
        }
        final List<Reply.Prediction> predictions = reply.predictions();
        if (inOrder(batch, predictions)) {
            for (int i = 0; i < predictions.size(); i++) {
                answer(batch.entries.get(i), predictions.get(i));
            }
            return;
        }
        final Map<String, Reply.Prediction> byId = new HashMap<>();
        predictions.forEach(prediction -> byId.put(prediction.requestId(), prediction));
        for (final Entry entry : batch.entries) {
            final Reply.Prediction prediction = byId.get(id(entry));
            if (prediction != null) {
                answer(entry, prediction);
            } else if (!isPartial(reply)) {
                failed(entry, 500, "The worker's reply had no answer to this request");
            }
        }
    }

    /** Status of each request's answer, in the order of the batch. */
    public static int[] statuses(final Batch batch, final Reply reply) {
        final int[] statuses = new int[batch.size()];
        final List<Reply.Prediction> predictions = reply.predictions();
        if (reply.code() != 200) {
            Arrays.fill(statuses, reply.code());
        } else if (inOrder(batch, predictions)) {
            for (int i = 0; i < statuses.length; i++) {
                statuses[i] = predictions.get(i).status();
            }
        } else {
            final Map<String, Integer> byId = new HashMap<>();
            predictions.forEach(each -> byId.put(each.requestId(), each.status()));
            for (int i = 0; i < statuses.length; i++) {
                statuses[i] = byId.getOrDefault(id(batch.entries.get(i)), 500);
            }
        }
        return statuses;
    }

    /** As the worker was told it. TorchServe gives none to some pipelined requests. */
    private static String id(final Entry entry) {
        final String id = entry.job.getJobId();
        return id == null ? "" : id;
    }

    private static boolean inOrder(final Batch batch, final List<Reply.Prediction> predictions) {
        if (batch.size() != predictions.size()) {
            return false;
        }
        for (int i = 0; i < predictions.size(); i++) {
            if (!id(batch.entries.get(i)).equals(predictions.get(i).requestId())) {
                return false;
            }
        }
        return true;
    }

    private static void answer(final Entry entry, final Reply.Prediction prediction) {
        if (entry.stage == Entry.Stage.EXPIRED) {
            return; // it has its answer
        }
        try {
            entry.job.response(
                    prediction.body(),
                    prediction.contentType(),
                    prediction.status(),
                    prediction.phrase(),
                    prediction.headers());
        } catch (RuntimeException | Error e) { // a full heap too: the rest of the batch waits
            LOGGER.error("Answer to request {} failed", entry.job.getJobId(), e);
            error(entry, 500, "The answer could not be sent: " + e);
        }
    }

    /** Its worker gave no answer to it. */
    private static void failed(final Entry entry, final int status, final String text) {
        if (entry.stage != Entry.Stage.EXPIRED) {
            error(entry, status, text);
        }
    }

    /** Refuse a REST call with a status that no exception of TorchServe stands for, in its shape. */
    public static void refused(final Job job, final Refusal why) {
        final boolean isTooMany = why.status() == Refusal.TOO_MANY;
        final JsonObject json = new JsonObject();
        json.addProperty("code", why.status());
        json.addProperty("type", isTooMany ? "TooManyRequestsException" : "ForbiddenException");
        json.addProperty("message", why.text());
        job.response(
                (json + "\n").getBytes(StandardCharsets.UTF_8),
                "application/json",
                why.status(),
                isTooMany ? "Too Many Requests" : "Forbidden",
                why.retryAfterS() == 0
                        ? Map.of()
                        : Map.of("retry-after", String.valueOf(why.retryAfterS())));
    }

    /** Answer with an error; a streamed answer that has begun can only be cut. */
    static void error(final Entry entry, final int status, final String text) {
        try {
            if (entry.streamed && entry.job instanceof RestJob job) {
                final ChannelHandlerContext context = StockFields.context(job);
                if (context != null) {
                    context.close();
                }
            } else {
                entry.job.sendError(status, text);
            }
        } catch (RuntimeException | Error e) { // as above
            LOGGER.debug("Error for request {} was not sent", entry.job.getJobId(), e);
        }
    }
}
