package org.shunter.torchserve.preemption;

import static org.shunter.torchserve.page.ControlLayout.*;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonParser;
import java.io.IOException;
import java.math.BigInteger;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.TreeSet;
import java.util.concurrent.atomic.AtomicInteger;
import org.shunter.torchserve.forming.RequestClass;
import org.shunter.torchserve.page.ControlPage;
import org.shunter.torchserve.page.SliceSet;
import org.shunter.torchserve.placement.DeviceNames;
import org.shunter.torchserve.placement.Slices;
import org.shunter.torchserve.queue.Effects;

/** Runs slices, hold words and turns without a server, for the tests in Python. */
public final class TurnsTool {
    private TurnsTool() {}

    /**
     * {@code (slices|hold|turns) FILE}, {@code random SEED STEPS}, {@code threads MODELS BATCHES},
     * {@code stock NUMBER [VISIBLE]}, {@code moves COUNT}.
     */
    public static void main(final String[] args) throws Exception {
        switch (args[0]) {
            case "slices":
                slices(rows(args[1]));
                break;
            case "moves":
                moves(Integer.parseInt(args[1]));
                break;
            case "stock":
                System.out.println(
                        Slices.ofStock(Integer.parseInt(args[1]), args.length > 2 ? args[2] : null));
                break;
            case "hold":
                hold(rows(args[1]));
                break;
            case "turns":
                turns(rows(args[1]));
                break;
            case "random":
                new Random(Long.parseLong(args[1]))
                        .longs(20)
                        .forEach(seed -> random(new Random(seed), Integer.parseInt(args[2])));
                break;
            case "threads":
                threads(Integer.parseInt(args[1]), Integer.parseInt(args[2]));
                break;
            default:
                throw new IllegalArgumentException(args[0]);
        }
    }

    private static JsonArray rows(final String file) throws IOException {
        return JsonParser.parseString(Files.readString(Path.of(file))).getAsJsonArray();
    }

    private static ControlPage page() {
        return new ControlPage(ByteBuffer.allocateDirect(PAGE_SIZE));
    }

    /**
     * What NVML knows: an object of names and devices, or null; then rows of cores and device. Prints
     * their slices by one table, the names of their devices, and what was asked and warned.
     */
    private static void slices(final JsonArray rows) {
        final JsonElement nvml = rows.get(0);
        final List<String> told = new ArrayList<>();
        final Slices table =
                new Slices(
                        new DeviceNames(
                                names -> {
                                    told.add("asked " + names);
                                    return nvml.isJsonNull() ? "null" : answer(nvml, names);
                                },
                                text -> told.add("warned " + text)),
                        text -> told.add("warned " + text));
        for (int i = 1; i < rows.size(); i++) {
            final JsonArray row = rows.get(i).getAsJsonArray();
            final String device = text(row.get(1));
            final SliceSet found = table.of(text(row.get(0)), device);
            System.out.println(found + "|" + (device == null ? "" : table.named(device)) + "|" + told);
            told.clear();
        }
    }

    private static String answer(final JsonElement nvml, final List<String> names) {
        final JsonArray answer = new JsonArray();
        names.forEach(name -> answer.add(nvml.getAsJsonObject().get(name)));
        return answer.toString();
    }

    private static String text(final JsonElement value) {
        return value.isJsonNull() ? null : value.getAsString();
    }

    /**
     * Rows of time, model, and then slices and slot, or nothing for progress; prints slices, models,
     * since and progress after each. While nothing is held the number is 0.
     */
    private static void hold(final JsonArray rows) {
        final ControlPage page = page();
        final Hold hold = new Hold(page);
        final List<Hold.Part> parts = new ArrayList<>();
        for (int i = 0; i < rows.size(); i++) {
            final JsonArray row = rows.get(i).getAsJsonArray();
            final long now = row.get(0).getAsLong();
            while (parts.size() <= row.get(1).getAsInt()) {
                parts.add(hold.part());
            }
            final Hold.Part part = parts.get(row.get(1).getAsInt());
            if (row.size() == 2) {
                part.progress(now);
            } else {
                part.show(set(row.get(2).getAsString()), row.get(3).getAsInt(), now);
            }
            print(page);
        }
        hold.release();
        print(page);
        parts.get(0).show(SliceSet.of(1), 1, 1);
        print(page);
    }

    /** A hold moves between slices of all words; who reads meanwhile must find one of them. */
    private static void moves(final int count) throws InterruptedException {
        final ControlPage page = page();
        page.set(HEADER_SIZE + K_HOLDER_PID, 1);
        page.set(HEADER_SIZE + K_HOLDER_HEARTBEAT_NS, 1);
        final Hold hold = new Hold(page);
        final Hold.Part part = hold.part();
        final SliceSet[] places = new SliceSet[SLICE_WORDS];
        for (int i = 0; i < SLICE_WORDS; i++) {
            places[i] = set("1" + "0".repeat(16 * i));
        }
        part.show(places[0], 3, 1);
        final Random random = new Random(count);
        final Thread writer =
                new Thread(
                        () -> {
                            for (int i = 0; i < count; i++) {
                                part.show(places[random.nextInt(SLICE_WORDS)], 3, 1);
                            }
                        });
        writer.start();
        long looks = 0;
        while (writer.isAlive()) {
            ensure(!hold.held(1).isEmpty(), "a hold that moves was missed");
            looks++;
        }
        writer.join();
        ensure(looks > 0, "nobody looked");
    }

    private static SliceSet set(final String text) {
        final BigInteger bits = new BigInteger(text, 16);
        final long[] words = new long[SLICE_WORDS];
        for (int i = 0; i < SLICE_WORDS; i++) {
            words[i] = bits.shiftRight(Long.SIZE * i).longValue();
        }
        return SliceSet.of(words);
    }

    private static void print(final ControlPage page) {
        final long[] told = new long[SLICE_WORDS];
        for (int i = 0; i < SLICE_WORDS; i++) {
            told[i] = page.get(HEADER_SIZE + K_HOLD_SLICES + 8 * i);
        }
        final SliceSet slices = SliceSet.of(told);
        ensure(
                slices.isEmpty() == (page.get(HEADER_SIZE + K_HOLD_NUMBER) == 0),
                "the number says something else than the slices");
        final StringBuilder line = new StringBuilder().append(slices);
        final int[] words = {
            K_HOLD_MODELS, K_HOLD_MODELS + 8, K_HOLD_SINCE_NS, K_HOLD_PROGRESS_NS
        };
        for (final int word : words) {
            line.append(' ').append(Long.toHexString(page.get(HEADER_SIZE + word)));
        }
        System.out.println(line);
    }

    /** A request of a {@link Model}. */
    private record Request(RequestClass requestClass, long arrivalNs, long deadlineNs) {}

    /**
     * A request that a worker runs.
     *
     * @param begunUnder the rules that it began under
     */
    private record Run(int worker, Request request, TurnRules begunUnder) {
        boolean is(final RequestClass requestClass) {
            return request.requestClass == requestClass;
        }
    }

    /** Does what a dispatcher does. */
    private static final class Model {
        final int number;
        final SliceSet slices;
        final boolean yields;
        final Turns turns;
        final TurnTaker taker;
        final List<Request> queue = new ArrayList<>();
        final List<Integer> started;
        long ageingNs;
        /** That a batch uses. */
        int cpus;

        int workers = 1;
        /** The oldest first. */
        final List<Run> running = new ArrayList<>();

        /** All models, where one thread runs them. */
        List<Model> others = List.of();

        AtomicInteger[] users = {};
        volatile int done;

        Model(final Turns turns, final int number, final SliceSet slices, final List<Integer> started) {
            this.turns = turns;
            this.number = number;
            this.slices = slices;
            this.cpus = slices.cpus();
            this.yields = true;
            this.started = started;
            this.taker = turns.join(() -> event(0, () -> {}));
        }

        private SliceSet of(final RequestClass requestClass) {
            final boolean runs = running.stream().anyMatch(run -> run.is(requestClass));
            return runs && turns.rules().apply(requestClass, yields) ? slices : SliceSet.NONE;
        }

        /** CPUs that its best-effort batches use. */
        int used() {
            final long runs = running.stream().filter(r -> r.is(RequestClass.BEST_EFFORT)).count();
            return of(RequestClass.BEST_EFFORT).isEmpty() ? 0 : (int) runs * cpus;
        }

        boolean waits(final RequestClass requestClass) {
            return running.size() < workers
                    && queue.stream().anyMatch(r -> r.requestClass == requestClass);
        }

        void event(final long now, final Runnable change) {
            final Effects effects = new Effects();
            synchronized (this) {
                change.run();
                final long at = Math.max(now, clock);
                clock = at;
                taker.begin(of(RequestClass.STRICT), of(RequestClass.BEST_EFFORT), used());
                for (final RequestClass each : RequestClass.all()) {
                    start(each, 1, at); // what is due does not wait for the rest of the plan
                    start(each, workers, at);
                }
                taker.settle(
                        of(RequestClass.STRICT),
                        of(RequestClass.BEST_EFFORT),
                        used(),
                        waits(RequestClass.STRICT),
                        waits(RequestClass.BEST_EFFORT),
                        at,
                        effects);
            }
            effects.run();
        }

        /** Ask for all free workers, as a plan does, and give so many of them a batch. */
        private void start(final RequestClass each, final int most, final long now) {
            if (!waits(each)) {
                return;
            }
            final List<Integer> free = new ArrayList<>();
            for (int worker = 0; worker < workers; worker++) {
                final int asked = worker;
                if (running.stream().noneMatch(run -> run.worker == asked)
                        && mayStart(asked, each, now)) {
                    free.add(worker);
                }
            }
            for (int i = 0; i < Math.min(most, free.size()) && waits(each); i++) {
                run(free.get(i), each);
            }
        }

        private boolean mayStart(final int worker, final RequestClass each, final long now) {
            if (each == RequestClass.BEST_EFFORT && taker.strictWaits(slices)) {
                return false;
            }
            long oldest = Long.MAX_VALUE;
            long tightest = Long.MAX_VALUE;
            for (final Request request : queue) {
                if (request.requestClass == each) {
                    oldest = Math.min(oldest, request.arrivalNs);
                    tightest = Math.min(tightest, request.deadlineNs);
                }
            }
            return !turns.rules().apply(each, yields)
                    || taker.take(worker, each, slices, cpus, oldest, tightest, ageingNs, now);
        }

        private void run(final int worker, final RequestClass each) {
            final TurnRules rules = turns.rules();
            final Request next =
                    queue.stream().filter(r -> r.requestClass == each).findFirst().orElseThrow();
            ensure(
                    !rules.apply(each, yields)
                            || others.stream().anyMatch(o -> !o.isUnder(rules))
                            || !isFull(others, rules, this, next),
                    "no room for model " + number);
            queue.remove(next);
            running.add(new Run(worker, next, rules));
            started.add(number);
            for (final AtomicInteger user : users) {
                if (user.incrementAndGet() != 1) {
                    throw new AssertionError("two batches on one slice");
                }
            }
        }

        /** Whether all that runs began under these rules. */
        boolean isUnder(final TurnRules rules) {
            return running.stream().allMatch(run -> run.begunUnder == rules);
        }

        /** The oldest batch ends. */
        synchronized void end() {
            if (!running.isEmpty()) {
                for (final AtomicInteger user : users) {
                    user.decrementAndGet();
                }
                running.remove(0);
                done++;
            }
        }

        synchronized boolean runs() {
            return !running.isEmpty();
        }
    }

    private static volatile long clock;

    private static ControlPage ordered(final int strict, final int bestEffort, final int exclusive) {
        final ControlPage page = page();
        order(page, strict, bestEffort, exclusive);
        return page;
    }

    private static void order(
            final ControlPage page, final int strict, final int bestEffort, final int exclusive) {
        page.set(H_STRICT_ORDER, strict);
        page.set(H_BEST_EFFORT_ORDER, bestEffort);
        page.set(H_EXCLUSIVE, exclusive);
    }

    /**
     * Rows: the order of strict and of best effort, whether exclusive, slices and ageing of the
     * models, CPUs and workers where they are not all and one, then events: {@code [time, model,
     * class, deadline]} offers, {@code [time, model]} ends the oldest. Prints the models in the order
     * of their starts.
     */
    private static void turns(final JsonArray cases) {
        for (final JsonElement element : cases) {
            final JsonArray row = element.getAsJsonArray();
            clock = 0;
            final Turns turns =
                    new Turns(
                            ordered(
                                    row.get(0).getAsInt(),
                                    row.get(1).getAsInt(),
                                    row.get(2).getAsInt()),
                            SliceSet::cpus);
            final List<Integer> started = new ArrayList<>();
            final List<Model> models = new ArrayList<>();
            for (final JsonElement each : row.get(3).getAsJsonArray()) {
                final JsonArray told = each.getAsJsonArray();
                final Model model =
                        new Model(
                                turns,
                                models.size(),
                                SliceSet.of(told.get(0).getAsLong()),
                                started);
                model.ageingNs = told.get(1).getAsLong();
                model.cpus = told.size() > 2 ? told.get(2).getAsInt() : model.cpus;
                model.workers = told.size() > 3 ? told.get(3).getAsInt() : model.workers;
                models.add(model);
            }
            for (final JsonElement each : row.get(4).getAsJsonArray()) {
                final JsonArray event = each.getAsJsonArray();
                final long now = event.get(0).getAsLong();
                final Model model = models.get(event.get(1).getAsInt());
                if (event.size() == 2) {
                    model.event(now, model::end);
                    continue;
                }
                final RequestClass c = RequestClass.all()[event.get(2).getAsInt()];
                final Request request = new Request(c, now, event.get(3).getAsLong());
                model.event(now, () -> model.queue.add(request));
            }
            System.out.println(started);
        }
    }

    /** Random events; nothing may run beside what it must not, and nothing may wait for nothing. */
    private static void random(final Random random, final int steps) {
        clock = 0;
        final ControlPage page = page();
        final Turns turns = new Turns(page, SliceSet::cpus);
        final List<Model> models = new ArrayList<>();
        for (int i = 0; i < 5; i++) {
            models.add(new Model(turns, i, set(Integer.toHexString(1 + random.nextInt(7))), new ArrayList<>()));
            models.get(i).ageingNs = random.nextInt(3) * 20;
            models.get(i).cpus = 1 + random.nextInt(models.get(i).slices.cpus());
            models.get(i).workers = 1 + random.nextInt(3);
        }
        models.forEach(model -> model.others = models);
        int offered = 0;
        for (int step = 0; step < steps; step++) {
            final Model model = models.get(random.nextInt(models.size()));
            final int what = random.nextInt(20);
            if (what < 9 && model.queue.size() < 8) {
                final RequestClass c = RequestClass.all()[random.nextInt(2)];
                final Request request = new Request(c, step, step + random.nextInt(99));
                model.event(step, () -> model.queue.add(request));
                offered++;
            } else if (what < 16) {
                model.event(step, model::end);
            } else if (what < 18 && !model.queue.isEmpty()) { // a client hung up, or it is too late
                final int gone = random.nextInt(model.queue.size());
                model.event(step, () -> model.queue.remove(gone));
                offered--;
            } else if (what == 18 && model.runs()) { // its worker died
                final Request again = model.running.get(0).request;
                model.event(
                        step,
                        () -> {
                            model.end();
                            model.done--;
                            model.queue.add(0, again);
                        });
            } else if (what == 19 && random.nextInt(20) == 0) {
                order(page, random.nextInt(4), random.nextInt(4), random.nextInt(2));
                final Effects effects = new Effects();
                turns.obey(effects);
                effects.run();
            }
            check(models, turns.rules(), step);
        }
        for (int left = offered; left > 0; left--) {
            models.forEach(model -> model.event(steps, model::end));
        }
        final int done = models.stream().mapToInt(model -> model.done).sum();
        ensure(done == offered, "ran " + done + " of " + offered);
        models.forEach(model -> ensure(!model.taker.isActive(), "a turn is still taken"));
    }

    private static void check(final List<Model> models, final TurnRules rules, final int step) {
        for (final Model a : models) {
            for (final Model b : models) {
                ensure(
                        a == b || !a.isUnder(rules) || !b.isUnder(rules) || !conflict(rules, a, b),
                        "beside each other at " + step);
            }
            for (final Request request : a.queue) {
                ensure(
                        !a.waits(request.requestClass)
                                || isHeldUp(models, rules, a, request, new TreeSet<>()),
                        "model " + a.number + " waits at " + step + " under " + rules);
            }
        }
    }

    /** Whether two models run what must not run together, however many CPUs there are. */
    private static boolean conflict(final TurnRules rules, final Model a, final Model b) {
        return a.running.stream()
                .map(Run::request)
                .filter(x -> !share(rules, x))
                .anyMatch(x -> b.running.stream().anyMatch(y -> conflict(rules, a, x, b, y.request)));
    }

    /** Whether batches like this run beside each other where there are CPUs for them. */
    private static boolean share(final TurnRules rules, final Request request) {
        return !rules.exclusive() && request.requestClass == RequestClass.BEST_EFFORT;
    }

    /** Whether what runs leaves no room for a request. */
    private static boolean isFull(
            final List<Model> models,
            final TurnRules rules,
            final Model model,
            final Request request) {
        int used = 0;
        for (final Model other : models) {
            for (final Run run : other.running) {
                if (other != model && conflict(rules, model, request, other, run.request)) {
                    used += share(rules, request) ? other.cpus : Integer.MAX_VALUE / 64;
                }
            }
        }
        return used > 0 && used + model.used() + model.cpus > model.slices.cpus();
    }

    private static boolean conflict(
            final TurnRules rules, final Model a, final Request x, final Model b, final Request y) {
        return a.slices.overlaps(b.slices)
                && rules.apply(x.requestClass, true)
                && rules.apply(y.requestClass, true)
                && (rules.exclusive() || x.requestClass == y.requestClass);
    }

    /** By what runs, or by somebody who is. */
    private static boolean isHeldUp(
            final List<Model> models,
            final TurnRules rules,
            final Model model,
            final Request request,
            final TreeSet<Integer> visited) {
        if (!visited.add(2 * model.number + request.requestClass.ordinal())) {
            return false;
        }
        for (final Request first : model.queue) { // its own strict requests go before
            if (request.requestClass == RequestClass.BEST_EFFORT
                    && first.requestClass == RequestClass.STRICT
                    && isHeldUp(models, rules, model, first, visited)) {
                return true;
            }
        }
        if (isFull(models, rules, model, request)
                || rules.exclusive()
                        && model.running.stream().anyMatch(run -> !run.is(request.requestClass))) {
            return true;
        }
        for (final Model other : models) {
            if (other != model) {
                for (final Request first : other.queue) {
                    if (other.waits(first.requestClass)
                            && conflict(rules, model, request, other, first)
                            && isHeldUp(models, rules, other, first, visited)) {
                        return true;
                    }
                }
            }
        }
        return false;
    }

    private static void ensure(final boolean holds, final String what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }

    /** Models on threads of their own share one slice: never two at once, and all of it gets done. */
    private static void threads(final int count, final int batches) throws InterruptedException {
        final Turns turns = new Turns(ordered(ORDER_FIFO, ORDER_ROUND_ROBIN, 1));
        final AtomicInteger[] users = {new AtomicInteger()};
        final List<Thread> threads = new ArrayList<>();
        final AtomicInteger finished = new AtomicInteger();
        for (int i = 0; i < count; i++) {
            final Model model = new Model(turns, i, SliceSet.of(1), new ArrayList<>());
            model.users = users;
            threads.add(new Thread(() -> finished.addAndGet(work(model, batches))));
        }
        threads.forEach(Thread::start);
        for (final Thread thread : threads) {
            thread.join();
        }
        System.out.println(finished.get());
    }

    private static int work(final Model model, final int batches) {
        for (int i = 0; i < batches; i++) {
            final long now = System.nanoTime();
            final RequestClass c = RequestClass.all()[i % 2];
            model.event(now, () -> model.queue.add(new Request(c, now, now)));
            final long end = now + 20_000_000_000L;
            while (!model.runs() && System.nanoTime() - end < 0) {
                Thread.yield();
            }
            model.event(System.nanoTime(), model::end);
        }
        return model.done;
    }
}
