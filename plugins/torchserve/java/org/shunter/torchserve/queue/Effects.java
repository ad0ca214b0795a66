package org.shunter.torchserve.queue;

import java.util.ArrayList;
import java.util.List;
import org.shunter.torchserve.preemption.Turns;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * What a decision of the dispatcher asks for, done after its lock is released: batches are written
 * first, so that workers are not kept waiting by answers.
 */
public final class Effects implements Turns.Later {
    private static final Logger LOGGER = LoggerFactory.getLogger(Effects.class);

    private final List<BatchWorker> flush = new ArrayList<>(2);
    private List<Runnable> later;
    private Batch answered;
    private Reply reply;

    public void flush(final BatchWorker worker) {
        if (!flush.contains(worker)) {
            flush.add(worker);
        }
    }

    @Override
    public void later(final Runnable action) {
        if (later == null) {
            later = new ArrayList<>();
        }
        later.add(action);
    }

    /** Answer a batch: after the workers, before everything else. At most once. */
    public void deliver(final Batch batch, final Reply to) {
        answered = batch;
        reply = to;
    }

    /** Answer a request with an error. */
    public void refuse(final Entry entry, final int status, final String text) {
        later(() -> Answers.error(entry, status, text));
    }

    /** One action that fails must not keep the others from happening. */
    private static void attempt(final Runnable action) {
        try {
            action.run();
        } catch (RuntimeException | Error e) { // a full heap too: the others hold requests
            LOGGER.error("An action after a decision failed", e);
        }
    }

    public void run() {
        flush.forEach(worker -> attempt(worker::flush));
        if (answered != null) {
            attempt(() -> Answers.deliver(answered, reply));
        }
        if (later != null) {
            later.forEach(Effects::attempt);
        }
    }
}
