package org.shunter.torchserve;

import java.util.ArrayList;
import java.util.List;

/**
 * What a decision of the dispatcher asks for, done after its lock is released: batches are written
 * first, so that workers are not kept waiting by answers.
 */
final class Effects {
    private final List<Worker> flush = new ArrayList<>(2);
    private List<Runnable> later;

    void flush(final Worker worker) {
        if (!flush.contains(worker)) {
            flush.add(worker);
        }
    }

    void later(final Runnable action) {
        if (later == null) {
            later = new ArrayList<>();
        }
        later.add(action);
    }

    /** Answer a request with an error. */
    void refuse(final Entry entry, final int status, final String text) {
        later(() -> Answers.error(entry, status, text));
    }

    void run() {
        for (final Worker worker : flush) {
            worker.flush();
        }
        if (later != null) {
            later.forEach(Runnable::run);
        }
    }
}
