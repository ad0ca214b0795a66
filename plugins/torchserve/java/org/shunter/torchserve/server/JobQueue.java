package org.shunter.torchserve.server;

import java.util.concurrent.LinkedBlockingDeque;
import org.pytorch.serve.http.BadRequestException;
import org.pytorch.serve.http.ServiceUnavailableException;
import org.pytorch.serve.job.GRPCJob;
import org.pytorch.serve.job.Job;
import org.pytorch.serve.util.messages.WorkerCommands;
import org.pytorch.serve.wlm.Model;
import org.shunter.torchserve.forming.RequestClass;
import org.shunter.torchserve.forming.RequestTerms;
import org.shunter.torchserve.forming.Rerun;
import org.shunter.torchserve.pool.ServedModel;
import org.shunter.torchserve.queue.Answers;
import org.shunter.torchserve.queue.Entry;
import org.shunter.torchserve.queue.Refusal;
import org.shunter.torchserve.settings.ModelSettings;
import org.shunter.torchserve.stock.ReceivedBody;
import org.shunter.torchserve.stock.StockFields;

/**
 * What TorchServe sees as a model's request queue. Nothing is ever stored in it: an offered request
 * goes to the dispatcher, or is answered with the reason why not.
 */
final class JobQueue extends LinkedBlockingDeque<Job> {
    private static final long serialVersionUID = 1L;

    private final transient ServedModel served;
    private final transient StrictClaims strictClaims;

    JobQueue(final ServedModel served, final StrictClaims strictClaims) {
        this.served = served;
        this.strictClaims = strictClaims;
    }

    @Override
    public boolean offer(final Job job) {
        LargeBodies.giveBack(job);
        final RequestTerms terms;
        final String key = StrictClaims.takeKey(job.getPayload(), job instanceof GRPCJob);
        try {
            terms =
                    job instanceof GRPCJob
                            ? RequestTerms.takeFrom(job.getPayload())
                            : RequestTerms.ofHeaders(job.getPayload().getHeaders());
            served.settings().check(terms);
        } catch (BadRequestException e) {
            served.dispatcher().countRejected(served.settings().defaultClass(), e.getMessage());
            return refuse(job, new Refusal(400, e.getMessage(), 0));
        }
        final boolean claims = terms.requestClass() == RequestClass.STRICT && !isDescribe(job);
        final Refusal forbidden = claims ? strictClaims.refusalOf(key) : null;
        if (forbidden != null) {
            served.dispatcher().countRejected(RequestClass.STRICT, forbidden.text());
            return refuse(job, forbidden);
        }
        final Entry entry = entry(job, terms);
        // Before the offer: afterwards the request may already be answered.
        ClientConnection.watch(entry, served.dispatcher());
        final Refusal refusal = served.dispatcher().offer(entry);
        if (refusal == null) {
            return true;
        }
        final boolean hasNobody = refusal.status() == 503 && served.pool().hasNoWorker();
        return refuse(job, hasNobody ? Refusal.unavailable(served.whyNoWorker()) : refusal);
    }

    private static boolean isDescribe(final Job job) {
        return job.getCmd() == WorkerCommands.DESCRIBE;
    }

    /** REST calls are answered by TorchServe's own handlers of exceptions where there are some. */
    private static boolean refuse(final Job job, final Refusal why) {
        ReceivedBody.release(job);
        if (job instanceof GRPCJob) {
            job.sendError(why.status(), why.text());
        } else if (why.status() == Refusal.TOO_MANY || why.status() == Refusal.FORBIDDEN) {
            Answers.refused(job, why);
        } else {
            throw why.status() == 400
                    ? new BadRequestException(why.text())
                    : new ServiceUnavailableException(why.text());
        }
        return true;
    }

    private Entry entry(final Job job, final RequestTerms terms) {
        final ModelSettings settings = served.settings();
        final RequestClass requestClass =
                terms.requestClass() == null ? settings.defaultClass() : terms.requestClass();
        final long arrivalNs = job.getBegin();
        final Rerun rerun = terms.rerun(settings.retry());
        if (isDescribe(job)) { // no inference: it takes as long as it takes
            return new Entry(job, requestClass, arrivalNs, Entry.NEVER, rerun);
        }
        long relativeNs = terms.deadlineNs();
        if (relativeNs == 0 && requestClass == RequestClass.STRICT) {
            relativeNs = settings.sloNs();
        }
        final long clientMs = served.model().getClientTimeoutInMills();
        if (clientMs > 0) {
            final long clientNs = clientMs * 1_000_000L;
            relativeNs = relativeNs == 0 ? clientNs : Math.min(relativeNs, clientNs);
        }
        final long deadlineNs = relativeNs == 0 ? Entry.NEVER : arrivalNs + relativeNs;
        return new Entry(job, requestClass, arrivalNs, deadlineNs, rerun);
    }

    /** A model's job_queue_size; what an earlier queue of ours holds is not to be taken off. */
    static int capacity(final Model model) {
        return StockFields.dataQueue(model) instanceof JobQueue before
                ? before.served.dispatcher().capacity()
                : Math.max(1, model.getJobQueueRemainingCapacity());
    }

    @Override
    public void addFirst(final Job job) {
        offer(job);
    }

    @Override
    public int size() {
        return served.dispatcher().waiting();
    }

    @Override
    public boolean isEmpty() {
        return size() == 0;
    }

    @Override
    public int remainingCapacity() {
        return Math.max(0, served.dispatcher().capacity() - size());
    }
}
