package org.shunter.torchserve.dispatch;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.pytorch.serve.job.Job;
import org.pytorch.serve.util.messages.RequestInput;
import org.pytorch.serve.util.messages.WorkerCommands;
import org.shunter.torchserve.forming.RequestClass;
import org.shunter.torchserve.forming.Rerun;
import org.shunter.torchserve.page.Commands;
import org.shunter.torchserve.page.ControlLayout;
import org.shunter.torchserve.page.ControlPage;
import org.shunter.torchserve.page.ModelSlot;
import org.shunter.torchserve.page.SliceSet;
import org.shunter.torchserve.preemption.Hold;
import org.shunter.torchserve.preemption.PoolRoom;
import org.shunter.torchserve.preemption.Turns;
import org.shunter.torchserve.queue.Batch;
import org.shunter.torchserve.queue.BatchWorker;
import org.shunter.torchserve.queue.Entry;
import org.shunter.torchserve.queue.Loss;
import org.shunter.torchserve.queue.Refusal;
import org.shunter.torchserve.queue.Reply;
import org.shunter.torchserve.queue.WorkerGroup;
import org.shunter.torchserve.queue.WorkerState;
import org.shunter.torchserve.settings.GroupConfig;

/**
 * A dispatcher without a server: time stands still until it is moved, workers are lists, and what
 * every client got is written down.
 */
public class TestModel {
    static final long MS = 1_000_000L;
    private static final long ALARM_TAKES_NS = 1000;
    private static final int MOST_ALARMS = 10_000;

    /** A client's request and what it was answered. */
    public static final class Request extends Job {
        final String name;
        final List<Integer> statuses = new ArrayList<>();
        final List<String> texts = new ArrayList<>();
        /** Something that costs memory as long as it is reachable. */
        final byte[] body = new byte[1];
        /** Ending it fails. */
        boolean isBroken;

        public Request(final String name, final String id) {
            super("m", "1", WorkerCommands.PREDICT, new RequestInput(id));
            this.name = name;
        }

        @Override
        public RequestInput getPayload() {
            if (isBroken) {
                throw new IllegalStateException("told to fail");
            }
            return super.getPayload();
        }

        @Override
        public void response(
                final byte[] bytes,
                final CharSequence contentType,
                final int status,
                final String phrase,
                final Map<String, String> headers) {
            final boolean partial =
                    headers != null && "true".equals(headers.get(RequestInput.TS_STREAM_NEXT));
            if (!partial) {
                statuses.add(status);
                texts.add(new String(bytes));
            }
        }

        @Override
        public void sendError(final int status, final String text) {
            statuses.add(status);
            texts.add(text);
        }

        @Override
        public boolean isOpen() {
            return true;
        }

        @Override
        public String toString() {
            return name;
        }
    }

    /** A worker that does what a test says. */
    class FakeWorker extends BatchWorker {
        final List<Batch> outbox = new ArrayList<>();
        final int cap;
        boolean canWrite = true;
        /** The next batches cannot be encoded. */
        int unencodable;
        /** The next decisions fail when they look at it. */
        int faults;

        boolean ended;

        FakeWorker(final WorkerGroup<BatchWorker> group, final int cap) {
            super(group, room());
            this.cap = cap;
            state = WorkerState.READY;
        }

        @Override
        public int cap() {
            if (faults > 0) {
                faults--;
                throw new IllegalStateException("told to fail");
            }
            return allowed();
        }

        int allowed() {
            final int commanded = commands.cap(group.index);
            return Math.max(1, commanded > 0 ? Math.min(commanded, cap) : cap);
        }

        @Override
        public void enqueue(final Batch batch) {
            outbox.add(batch);
            onGiven(this, batch);
        }

        @Override
        public void flush() {
            while (canWrite && !outbox.isEmpty()) {
                final Batch batch = outbox.remove(0);
                if (unencodable > 0) {
                    unencodable--;
                    dispatcher.onUnsent(this, batch, 500, "not encoded");
                } else {
                    batch.sent = true;
                    onSent(this, batch);
                }
            }
        }

        @Override
        public void end() {
            if (dispatcher.onEnd(this)) {
                outbox.clear();
                ended = true;
            }
        }

        /** Answer the batch that runs. */
        void answer() {
            final List<Reply.Prediction> predictions = new ArrayList<>();
            for (final Entry entry : inFlight.peekFirst().entries) {
                final String id = entry.job.getJobId() == null ? "" : entry.job.getJobId();
                final byte[] body = ((Request) entry.job).name.getBytes();
                predictions.add(new Reply.Prediction(id, "", 200, "OK", Map.of(), body));
            }
            dispatcher.onReply(this, new Reply(200, "", predictions));
        }

        void answerPart() {
            final List<Reply.Prediction> predictions = new ArrayList<>();
            for (final Entry entry : inFlight.peekFirst().entries) {
                predictions.add(
                        new Reply.Prediction(
                                entry.job.getJobId(),
                                "",
                                200,
                                "OK",
                                Map.of(RequestInput.TS_STREAM_NEXT, "true"),
                                new byte[0]));
            }
            dispatcher.onReply(this, new Reply(200, "", predictions));
        }

        void fail(final int code) {
            dispatcher.onReply(this, new Reply(code, "told to fail", List.of()));
        }

        boolean lose(final Loss loss) {
            final boolean lost = dispatcher.onLost(this, loss);
            outbox.clear();
            return lost;
        }

        boolean die() {
            return lose(Loss.died(500, "told to die"));
        }

        /** After it was lost. */
        void comeBack() {
            dispatcher.change(this, WorkerState.Event.RETRIED);
            dispatcher.change(this, WorkerState.Event.STARTED);
            dispatcher.onReady(this);
        }

        /** Names of what runs. */
        List<String> running() {
            final Batch batch = inFlight.peekFirst();
            final List<String> names = new ArrayList<>();
            if (batch != null) {
                batch.entries.forEach(entry -> names.add(entry.job.toString()));
            }
            return names;
        }

        void drain() {
            if (dispatcher.drain(this)) {
                end();
            }
        }
    }

    private record Alarm(long atNs, long number, Runnable task, CompletableFuture<Void> handle) {}

    long now = 1000 * MS;
    boolean clockFails;
    final ControlPage page;
    final ModelSlot slot;
    final Commands commands;
    final Dispatcher dispatcher;
    final List<Request> requests = new ArrayList<>();
    /** Entries of requests that were taken. */
    final Map<Request, Entry> entries = new HashMap<>();

    private final List<Alarm> alarms = new ArrayList<>();
    private long numbers;

    TestModel(final int capacity, final long waitMs) {
        this(new Dispatcher.Limits(capacity, waitMs * 1000, 0, false));
    }

    TestModel(final Dispatcher.Limits limits) {
        this(limits, new ControlPage(ByteBuffer.allocateDirect(ControlLayout.PAGE_SIZE)));
    }

    private TestModel(final Dispatcher.Limits limits, final ControlPage page) {
        this(limits, page, new Hold(page), new Turns(page));
    }

    /** One of several on a page. */
    TestModel(
            final Dispatcher.Limits limits,
            final ControlPage page,
            final Hold hold,
            final Turns turns) {
        this.page = page;
        slot = page.claim();
        commands = new Commands(slot);
        dispatcher =
                new Dispatcher(
                        "m/1",
                        slot,
                        commands,
                        limits,
                        new Dispatcher.Shared(
                                this::schedule,
                                hold,
                                turns,
                                this::clock,
                                receivedNs -> {},
                                null));
    }

    private long clock() {
        if (clockFails) {
            throw new IllegalStateException("told to fail");
        }
        return now;
    }

    private Future<?> schedule(final Runnable task, final long delay, final TimeUnit unit) {
        final CompletableFuture<Void> handle = new CompletableFuture<>();
        alarms.add(new Alarm(now + unit.toNanos(delay), numbers++, task, handle));
        return handle;
    }

    /** Where the next worker's batches run, when its process serves other models too. */
    PoolRoom room() {
        return null;
    }

    /** For tests that look at what workers are given, and at what is written to them. */
    void onGiven(final FakeWorker worker, final Batch batch) {}

    void onSent(final FakeWorker worker, final Batch batch) {}

    /** Let time pass; what is due happens. */
    void pass(final long ns) {
        final long endNs = now + ns;
        int rung = 0;
        for (Alarm next = due(endNs); next != null; next = due(endNs)) {
            now = Math.max(now, next.atNs) + ALARM_TAKES_NS;
            next.task.run();
            if (++rung > MOST_ALARMS) {
                throw new AssertionError("the timer rings all the time");
            }
        }
        now = Math.max(now, endNs);
    }

    private Alarm due(final long endNs) {
        alarms.removeIf(alarm -> alarm.handle.isCancelled());
        final Alarm next =
                alarms.stream()
                        .filter(alarm -> alarm.atNs <= endNs)
                        .min(Comparator.comparingLong(Alarm::atNs).thenComparing(Alarm::number))
                        .orElse(null);
        alarms.remove(next);
        return next;
    }

    /** Whether a timer will ring that nobody has cancelled. */
    boolean willRing() {
        return alarms.stream().anyMatch(alarm -> !alarm.handle.isCancelled());
    }

    WorkerGroup<BatchWorker> group(final int index, final RequestClass... classes) {
        final GroupConfig all = GroupConfig.of(1, 0, 64);
        final GroupConfig config =
                new GroupConfig(
                        1,
                        0,
                        64,
                        classes.length == 0 ? all.classes() : java.util.Set.of(classes),
                        null,
                        null,
                        null);
        return new WorkerGroup<>(index, config, new WorkerGroup.Place(SliceSet.of(1), false), false);
    }

    FakeWorker worker(final int cap, final RequestClass... classes) {
        return new FakeWorker(group(0, classes), cap);
    }

    /** It stands still for strict work on these slices. */
    FakeWorker yielding(final SliceSet slices) {
        final WorkerGroup.Place place = new WorkerGroup.Place(slices, true);
        return new FakeWorker(new WorkerGroup<>(0, GroupConfig.of(1, 0, 64), place, false), 64);
    }

    /** A generation of workers of these caps. */
    FakeWorker[] serve(final int... caps) {
        final FakeWorker[] workers = new FakeWorker[caps.length];
        for (int i = 0; i < caps.length; i++) {
            workers[i] = worker(caps[i]);
        }
        dispatcher.setWorkers(List.of(workers));
        return workers;
    }

    Request offer(final String name, final RequestClass requestClass) {
        return offer(new Request(name, name), requestClass, 0, Rerun.AFTER_DEATH);
    }

    Request strict(final String name) {
        return offer(name, RequestClass.STRICT);
    }

    Request bestEffort(final String name) {
        return offer(name, RequestClass.BEST_EFFORT);
    }

    Request offer(
            final Request request,
            final RequestClass requestClass,
            final long relativeNs,
            final Rerun rerun) {
        final long deadlineNs = relativeNs == 0 ? Entry.NEVER : now + relativeNs;
        final Entry entry = new Entry(request, requestClass, now, deadlineNs, rerun);
        requests.add(request);
        entries.put(request, entry);
        final Refusal refusal = dispatcher.offer(entry);
        if (refusal != null) {
            request.sendError(refusal.status(), refusal.text());
        }
        return request;
    }

    /** Write words of the commands as the controller does. */
    void command(final Runnable write) {
        final long before = slot.get(ControlLayout.S_COMMAND_SEQUENCE);
        slot.set(ControlLayout.S_COMMAND_SEQUENCE, before + 1);
        if (before == 0) {
            slot.set(ControlLayout.S_ALPHA_MILLIONTHS, 500_000);
            slot.set(ControlLayout.S_THRESHOLD_CAP_MILLI, 1_000_000);
            slot.set(ControlLayout.S_MAX_WAIT_US, 3_600_000_000L);
            slot.set(ControlLayout.S_AGEING_US, 1_000_000);
            slot.set(ControlLayout.S_AHEAD_BATCHES, 1);
            slot.set(ControlLayout.S_MARGIN_US, 2000);
            for (int group = 0; group < ControlLayout.GROUP_COUNT; group++) {
                for (final RequestClass requestClass : RequestClass.all()) {
                    weigh(group, requestClass, 1000);
                }
            }
        }
        write.run();
        slot.set(ControlLayout.S_COMMAND_SEQUENCE, before + 2);
    }

    /** Inside {@link #command}. */
    void weigh(final int group, final RequestClass requestClass, final int milli) {
        final int offset = ModelSlot.of(ControlLayout.S_WEIGHT_MILLI, requestClass);
        slot.set(ModelSlot.ofGroup(offset, group), milli);
    }

    /** Nothing that the dispatcher can still reach keeps a request's body. */
    List<Object> pinned() {
        entries.clear();
        return Reachable.from(dispatcher, object -> object instanceof Entry || object instanceof Batch);
    }
}
