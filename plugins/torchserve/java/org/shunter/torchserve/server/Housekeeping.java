package org.shunter.torchserve.server;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.shunter.torchserve.host.Host;
import org.shunter.torchserve.page.ModelSlot;
import org.shunter.torchserve.page.SliceSet;
import org.shunter.torchserve.pool.ServedModel;
import org.shunter.torchserve.queue.Effects;
import org.shunter.torchserve.queue.Loss;
import org.shunter.torchserve.host.PoolMemory;
import org.shunter.torchserve.worker.Worker;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * What must happen again and again: heartbeats, group telemetry, taking up what the controller
 * wants, and finding workers that do not answer. What goes wrong for one model keeps nothing else
 * from happening, now or later.
 */
final class Housekeeping {
    private static final Logger LOGGER = LoggerFactory.getLogger(Housekeeping.class);
    private static final long INTERVAL_MS = 100;
    /** A fault that stays is logged once in so many times. */
    private static final int LOGGED_EVERY = 600;

    private static final int TALLIED_EVERY = 10;

    private final ShunterWorkLoadManager manager;
    private final Host host;
    private final Faults faults = new Faults();
    private long nowNs = System.nanoTime();
    private long passedNs;
    private SliceSet heldSlices = SliceSet.NONE;
    private final Tallies tallies;
    private long looks;

    Housekeeping(final ShunterWorkLoadManager manager) {
        this.manager = manager;
        this.host = manager.host();
        this.tallies = new Tallies(host.events());
    }

    /** Runs what may fail. */
    static final class Faults {
        private final Map<String, Integer> counts = new HashMap<>();

        /** Run it, and log what goes wrong: the timer would never call again after an error. */
        void attempt(final String what, final Runnable action) {
            try {
                action.run();
                counts.remove(what);
            } catch (RuntimeException | Error e) {
                if (counts.merge(what, 1, Integer::sum) % LOGGED_EVERY == 1) {
                    LOGGER.error("Housekeeping failed: {}", what, e);
                }
            }
        }
    }

    /** From now on, as long as the server lives. */
    void begin() {
        host.timer().scheduleAtFixedRate(this::run, INTERVAL_MS, INTERVAL_MS, TimeUnit.MILLISECONDS);
    }

    private void run() {
        final long now = System.nanoTime();
        passedNs = now - nowNs;
        nowNs = now;
        faults.attempt("heartbeat", () -> host.page().heartbeat(now));
        faults.attempt("holds", () -> host.hold().heartbeat(now));
        faults.attempt("turns", this::obeyTurns);
        faults.attempt("held slices", () -> heldSlices = host.hold().held(now));
        final List<ServedModel> models = manager.all();
        faults.attempt("runners", () -> observeRunners(models));
        faults.attempt("front end", manager.frontEnd()::obey);
        for (final ServedModel model : models) {
            faults.attempt(model.name(), model::keep);
            faults.attempt(model.name() + ", workers", () -> endOverdue(model));
        }
        faults.attempt("views", manager::forgetEnded);
        if (++looks % TALLIED_EVERY == 0) {
            faults.attempt(
                    "tallies",
                    () -> tallies.look(models, PoolMemory.read(host.runtime().path())));
        }
    }

    private void observeRunners(final List<ServedModel> models) {
        final List<ModelSlot> slots = new ArrayList<>();
        models.forEach(model -> slots.add(model.slot()));
        manager.runners().observe(slots);
    }

    private void obeyTurns() {
        final Effects effects = new Effects();
        host.turns().obey(effects);
        effects.run();
    }

    private void endOverdue(final ServedModel model) {
        final long timeoutS = model.model().getResponseTimeout();
        final long timeoutNs = TimeUnit.SECONDS.toNanos(timeoutS);
        final List<Worker> workers = model.pool().workers();
        model.dispatcher()
                .excuse(workers, heldSlices, passedNs, host.hold().longestParkNs() + timeoutNs);
        final Loss loss =
                Loss.timedOut("no answer within responseTimeout of " + timeoutS + " s");
        final Worker overdue =
                model.dispatcher().giveUpOverdue(workers, nowNs - timeoutNs, loss);
        if (overdue != null) {
            overdue.onTimedOut(loss);
        }
    }
}
