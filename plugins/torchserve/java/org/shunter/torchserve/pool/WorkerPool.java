package org.shunter.torchserve.pool;

import java.util.List;
import java.util.concurrent.CompletableFuture;
import org.pytorch.serve.http.BadRequestException;
import org.pytorch.serve.snapshot.SnapshotManager;
import org.shunter.torchserve.dispatch.Dispatcher;
import org.shunter.torchserve.events.Level;
import org.shunter.torchserve.host.Host;
import org.shunter.torchserve.settings.GroupConfig;
import org.shunter.torchserve.worker.Worker;
import org.shunter.torchserve.worker.WorkerLaunch;

/**
 * The workers of one model: how many there are, and which generation serves. {@link PoolState} says
 * what may happen when; {@link Resize} and {@link GenerationChange} carry changes out.
 *
 * <p>Every write of its fields is guarded by this object's lock; nothing here waits for a worker
 * while holding it.
 */
public final class WorkerPool {
    private final Host host;
    private final ServedModel served;
    private final Dispatcher dispatcher;
    private final WorkerRoster roster;
    private final Scaling scaling;
    private final AutoMode autoMode;
    /** Workers that the network front end feeds; the dispatcher does not know them. */
    private final Generation network;

    private volatile PoolState state = PoolState.SERVING;
    private volatile Generation current;
    private volatile Generation next;
    /** What users asked for; the controller may have chosen something else meanwhile. */
    private volatile List<GroupConfig> registered;
    private volatile String lastChange = "";
    private long generations = 1;

    /** Whether users asked for the change under way. */
    private boolean explicit;

    private CompletableFuture<Integer> retirement;

    WorkerPool(final Host host, final ServedModel served, final List<GroupConfig> configuration) {
        this.host = host;
        this.served = served;
        this.dispatcher = served.dispatcher();
        this.roster = new WorkerRoster(host, served);
        this.autoMode = new AutoMode(served);
        this.registered = configuration;
        this.scaling = new Scaling(this, roster, served);
        this.current = new Generation(generations, configuration, served::place);
        this.network = Generation.ofNetwork(served.settings().network(), served::place);
    }

    public Generation current() {
        return current;
    }

    /** The groups that the network front end feeds. */
    public Generation network() {
        return network;
    }

    /** The generation that is being started, or null. */
    public Generation next() {
        return next;
    }

    /** Whether a change is under way. */
    public boolean isChanging() {
        return state.isChanging();
    }

    /** The configuration that users asked for. */
    public List<GroupConfig> registered() {
        return registered;
    }

    public Scaling scaling() {
        return scaling;
    }

    /** Whether the controller may change the configuration. */
    public boolean auto() {
        return autoMode.isOn(current.placedByController ? List.of() : current.configuration());
    }

    public AutoMode autoMode() {
        return autoMode;
    }

    /** The result of the last change, for people. */
    public String lastChange() {
        return lastChange;
    }

    /** Say what became of a change. */
    void tell(final Level level, final String text) {
        lastChange = text;
        served.changed(level, text);
    }

    /**
     * Workers that management calls see: the current generation's, those that still drain, and
     * those that the network front end feeds.
     */
    public List<Worker> workers() {
        final List<Worker> workers = roster.with(current);
        workers.addAll(network.workers());
        return workers;
    }

    WorkerLaunch.Neighbours neighboursOf(final Worker starting) {
        return roster.neighboursOf(starting, current);
    }

    /** No worker can take a request, now or after a restart. */
    public boolean hasNoWorker() {
        return current.workers().isEmpty();
    }

    /** Go on to the next state; false when the event means nothing in this one. */
    private boolean move(final PoolState.Event event) {
        assert Thread.holdsLock(this);
        final PoolState after = state.after(event);
        state = after == null ? state : after;
        return after != null;
    }

    private void checkNotRetired() {
        if (state == PoolState.RETIRED) {
            throw new BadRequestException(this + " is being removed or scaled to 0");
        }
    }

    /**
     * Stock scaling, to 0 too; the result is that of {@link Scaling#now}. It does not count workers
     * that the network front end feeds; they are started with the first of the others.
     */
    public synchronized CompletableFuture<Integer> scale(final int min, final int max) {
        if (min <= 0) {
            return retire();
        }
        checkNotRetired();
        final WorkerCounts wanted = new WorkerCounts(min, max);
        if (!move(PoolState.Event.SCALE)) {
            return scaling.later(wanted);
        }
        if (state == PoolState.REPLACING) {
            scaling.later(wanted); // for the generation that is being started
        }
        return scaling.now(wanted);
    }

    /** The generation that serves has other workers than before, as users asked for. */
    void onScaled() {
        assert Thread.holdsLock(this);
        registered = current.configuration();
        dispatcher.setWorkers(current.workers());
        served.publishIdentity();
    }

    /** As {@link #configure}, for the controller, which may place the groups. */
    synchronized CompletableFuture<Void> configureAsWanted(final List<GroupConfig> wanted) {
        final CompletableFuture<Void> done = configure(wanted, false, false, null);
        if (next != null) {
            next.placedByController = true;
        }
        return done;
    }

    /** Serve what waits, take nothing new, end all workers. */
    private CompletableFuture<Integer> retire() {
        assert Thread.holdsLock(this);
        if (!move(PoolState.Event.RETIRE)) {
            return retirement;
        }
        scaling.end(new BadRequestException(this + " is being removed"));
        final List<Worker> ending = workers();
        if (next != null) {
            ending.addAll(next.end());
            next = null;
        }
        network.end();
        retirement = new Retirement(host, served.name(), dispatcher, current).begin(ending);
        return retirement;
    }

    /**
     * Change the configuration without anyone noticing. When the processes can stay, workers are
     * added and drained and caps change in place. Else a new generation is started beside the old
     * one and takes over when all of it has loaded. On a failure everything stays as it was.
     *
     * @param restart start new processes even when only numbers changed
     * @param remember whether the snapshot on disk shall say so
     * @param automatic whether the controller may change it from now on, in an explicit change;
     *     null: as before, and what users registered stays what it is
     * @throws RuntimeException when it cannot be begun; then nothing has changed
     * @return completed when the new configuration serves, or exceptionally when the old one stays
     */
    public synchronized CompletableFuture<Void> configure(
            final List<GroupConfig> wanted,
            final boolean restart,
            final boolean remember,
            final Boolean automatic) {
        check(wanted, automatic);
        final boolean inPlace =
                !restart && GroupConfig.sameProcesses(wanted, current.configuration());
        final int more = inPlace ? current.missing(wanted) : GroupConfig.instances(wanted);
        HostMemory.checkRoom(current.workers(), more);
        if (automatic != null && automatic != autoMode.isWanted()) {
            autoMode.set(automatic);
            onChanged();
        }
        explicit = automatic != null;
        move(inPlace ? PoolState.Event.RESIZE : PoolState.Event.REPLACE);
        if (inPlace) {
            return new Resize(this, roster, dispatcher, wanted, remember).begin();
        }
        return replaceBy(wanted, remember);
    }

    private CompletableFuture<Void> replaceBy(
            final List<GroupConfig> wanted, final boolean remember) {
        final Generation started = new Generation(++generations, wanted, served::place);
        next = started;
        final int timeoutS = served.model().getStartupTimeout();
        return new GenerationChange(this, roster, started, timeoutS, remember).begin(host);
    }

    private void check(final List<GroupConfig> wanted, final Boolean automatic) {
        checkNotRetired();
        if (isChanging()) {
            throw new BadRequestException("A change of " + this + " is under way; try again later");
        }
        if (hasNoWorker()) {
            throw new BadRequestException(this + " has no workers; scale it up first");
        }
        if (Boolean.TRUE.equals(automatic)) {
            autoMode.check(wanted);
        }
    }

    /** Dispatch to a generation's workers and tell everyone how many they are. */
    void serve(final Generation generation) {
        assert Thread.holdsLock(this);
        registered = explicit ? generation.configuration() : registered;
        scaling.lower(generation.instances());
        current = generation;
        dispatcher.setWorkers(generation.workers());
        scaling.serve(generation.instances(), explicit);
        served.publishIdentity();
    }

    boolean isPending(final Generation started) {
        return next == started;
    }

    /** A change is over, and has said what became of it: who sees the state sees that too. */
    void changed(final PoolState.Event outcome) {
        assert Thread.holdsLock(this);
        next = null;
        if (state == PoolState.REPLACING && outcome == PoolState.Event.FAILED) {
            scaling.forget(new BadRequestException("it counted when it came"));
        }
        if (move(outcome)) { // else it was retired in the meantime
            scaling.again();
        }
    }

    /** The worker groups changed, or who may change them; let the snapshot on disk say so. */
    public void onChanged() {
        SnapshotManager.getInstance().saveSnapshot();
    }

    /** A worker has ended for good. */
    void onEnded(final Worker worker) {
        roster.onEnded(worker);
    }

    /** A worker failed for longer than its recovery time and is not started again. */
    void onGivenUp(final Worker worker) {
        synchronized (this) {
            worker.group.remove(worker);
            if (current.groups.contains(worker.group)) {
                dispatcher.setWorkers(current.workers());
                served.publishIdentity();
            }
        }
        if (hasNoWorker()) {
            dispatcher.failWaiting(503, served.whyNoWorker());
        }
    }

    @Override
    public String toString() {
        return served.name();
    }
}
