package org.shunter.torchserve;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import org.pytorch.serve.http.BadRequestException;
import org.pytorch.serve.snapshot.SnapshotManager;
import org.pytorch.serve.wlm.Model;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The workers of one model: how many there are, and how one generation follows another.
 *
 * <p>Changes run under this object's lock, one after another; nothing here waits for a worker while
 * holding it.
 */
final class Fleet {
    private static final Logger LOGGER = LoggerFactory.getLogger(Fleet.class);

    private final Host host;
    private final ServedModel served;
    private final Model model;
    private final Dispatcher dispatcher;
    private final Staff staff;
    /** Workers that the network front end feeds; the dispatcher does not know them. */
    private final Generation network;

    private volatile Generation current;
    private volatile Generation next;
    /** Workers that are being added to the current generation; null when none are. */
    private volatile CompletableFuture<Void> resizing;

    private volatile boolean auto;
    private volatile String lastChange = "";
    private long generations = 1;
    /** It is being scaled to 0 or removed; nothing starts a worker any more. */
    private boolean retired;

    /** How many workers the last change left; who was given up since is missing. */
    private volatile int expected;

    /** Minimum and maximum of a scale call during a change-over, which the next one also gets. */
    private int[] asked;

    Fleet(final Host host, final ServedModel served, final List<GroupConfig> configuration) {
        this.host = host;
        this.served = served;
        this.model = served.model();
        this.dispatcher = served.dispatcher();
        this.staff = new Staff(host, served);
        this.auto = served.settings().auto();
        this.current = new Generation(generations, configuration, served::place);
        this.network = Generation.ofNetwork(served.settings().network(), served::place);
    }

    private String name() {
        return served.name();
    }

    Generation current() {
        return current;
    }

    /** The groups that the network front end feeds. */
    Generation network() {
        return network;
    }

    /** The generation that is being started, or null. */
    Generation next() {
        return next;
    }

    /** Whether a change is under way. */
    boolean isChanging() {
        return next != null || resizing != null;
    }

    /** Whether the controller may change the configuration. */
    boolean auto() {
        final boolean places = current.placedByController;
        return auto && served.whyNotAuto(places ? List.of() : current.configuration()) == null;
    }

    /** The result of the last change, for people. */
    String lastChange() {
        return lastChange;
    }

    private void tell(final String text) {
        lastChange = text;
        served.publishIdentity();
    }

    /**
     * Workers that management calls see: the current generation's, those that still drain, and
     * those that the network front end feeds.
     */
    List<Worker> workers() {
        final List<Worker> workers = staff.with(current);
        workers.addAll(network.workers());
        return workers;
    }

    /** Who is there when a worker starts. */
    WorkerLaunch.Company companyOf(final Worker starting) {
        final WorkerLaunch.Company company = staff.companyOf(starting, current);
        return starting.group.isNetwork ? company.replacingNobody() : company;
    }

    /** Start a worker of a generation that does not serve yet. */
    Worker start(final WorkerGroup group) {
        return staff.start(group);
    }

    /** No worker can take a request, now or after a restart. */
    boolean hasNoWorker() {
        return current.workers().isEmpty();
    }

    /** Whether nobody was given up since the last change. */
    boolean isComplete() {
        return current.workers().size() >= expected;
    }

    /**
     * Stock scaling: at least {@code min} and at most {@code max} workers. It does not count those
     * that the network front end feeds; they are started with the first of the others.
     *
     * @return completed with an HTTP status as in stock: at the first failed load, or when all new
     *     workers are loaded
     */
    synchronized CompletableFuture<Integer> scale(final int min, final int max) {
        if (min <= 0) {
            return retire();
        }
        checkNotRetired();
        if (resizing != null) {
            // What it ends with is what is to be scaled; until then /ping shall miss nobody.
            model.setMinWorkers(Math.min(min, current.instances()));
            return resizing.handle((done, error) -> 0).thenCompose(over -> scaleAgain(min, max));
        }
        if (next != null) {
            asked = new int[] {min, max};
        }
        final int have = current.workers().size();
        final int then = Math.min(Math.max(have, min), Math.max(min, max));
        expected = Math.min(expected, then); // lower first, as for what TorchServe is told
        final List<Worker> added = new ArrayList<>();
        for (int i = have; i < min; i++) {
            added.add(staff.start(current.growing()));
        }
        added.addAll(staff.fill(network, served.settings().network()));
        for (int i = have; i > Math.max(min, max); i--) {
            staff.drainYoungest(current.shrinking());
        }
        expected = then;
        dispatcher.setWorkers(current.workers());
        served.publishIdentity();
        return staff.loaded(added);
    }

    /** A scale call that came during a change counts after it too. */
    private synchronized CompletableFuture<Integer> scaleAgain(final int min, final int max) {
        checkNotRetired();
        model.setMinWorkers(Math.min(model.getMinWorkers(), min)); // lower first, for /ping
        final CompletableFuture<Integer> result = scale(min, max);
        model.setMinWorkers(min);
        model.setMaxWorkers(max);
        onChanged();
        return result;
    }

    /**
     * Whether the controller may change the configuration, where nothing speaks against it; an
     * explicit change says no.
     */
    void setAuto(final boolean value) {
        auto = value;
        served.publishIdentity();
    }

    /**
     * Check that the controller may change such worker groups.
     *
     * @throws BadRequestException naming what speaks against it
     */
    void checkAuto(final List<GroupConfig> groups) {
        final String whyNot = served.whyNotAuto(groups);
        if (whyNot != null) {
            throw new BadRequestException("auto: " + name() + " " + whyNot);
        }
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
        retired = true;
        dispatcher.refuse("Model \"" + name() + "\" has no worker: it is being scaled to 0 or removed");
        final Generation unfinished = next;
        next = null;
        if (unfinished != null) {
            unfinished.workers().forEach(Worker::end);
        }
        endNetwork();
        return new Retirement(host, name(), dispatcher, current).begin(staff.with(current));
    }

    /** They answer what they were given and then end. */
    synchronized void endNetwork() {
        final List<Worker> ending = network.workers();
        network.groups.forEach(group -> group.workers.clear());
        ending.forEach(Worker::end);
    }

    /** End every worker at once and answer what they held and what waits with an error. */
    void endAll(final int status, final String text) {
        dispatcher.setWorkers(List.of());
        workers().forEach(Worker::end);
        dispatcher.failWaiting(status, text);
    }

    private void checkNotRetired() {
        if (retired) {
            throw new BadRequestException(name() + " is being removed or scaled to 0");
        }
    }

    /**
     * Change the configuration without anyone noticing. When the processes can stay, workers are
     * added and drained and caps change in place. Else a new generation is started beside the old
     * one and takes over when all of it has loaded. On a failure everything stays as it was.
     *
     * @param restart start new processes even when only numbers changed
     * @param remember whether the snapshot on disk shall say so
     * @param automatic whether the controller may change it from now on; null: as before
     * @throws NoRoomException when the new workers find no memory beside those that serve
     * @throws BadRequestException when it cannot be begun; then nothing has changed
     * @return completed when the new configuration serves, or exceptionally when the old one stays
     */
    synchronized CompletableFuture<Void> configure(
            final List<GroupConfig> wanted,
            final boolean restart,
            final boolean remember,
            final Boolean automatic) {
        checkNotRetired();
        if (wanted.isEmpty()) {
            throw new BadRequestException("a configuration has at least one worker group");
        }
        if (isChanging()) {
            throw new BadRequestException("A change of " + name() + " is under way; try again later");
        }
        if (hasNoWorker()) {
            throw new BadRequestException(name() + " has no workers; scale it up first");
        }
        if (Boolean.TRUE.equals(automatic)) {
            checkAuto(wanted);
        }
        final boolean inPlace =
                !restart && GroupConfig.sameProcesses(wanted, current.configuration());
        final int more =
                inPlace
                        ? current.missing(wanted)
                        : wanted.stream().mapToInt(GroupConfig::instances).sum();
        final String shortage = more > 0 ? HostMemory.shortage(current.workers(), more) : null;
        if (shortage != null) {
            throw new NoRoomException(shortage);
        }
        if (automatic != null && automatic != auto) {
            setAuto(automatic);
            onChanged();
        }
        if (inPlace) {
            return resize(wanted, remember);
        }
        final Generation started = new Generation(++generations, wanted, served::place);
        next = started;
        tell("starting generation " + started.id);
        LOGGER.info("{}: {} {}", name(), lastChange, GroupConfig.text(wanted));
        final ChangeOver change =
                new ChangeOver(this, started, model.getStartupTimeout(), remember);
        host.execute(change);
        return change.done;
    }

    /** Remember why a change was not even begun; returns that. */
    String refused(final String reason) {
        tell("refused: " + reason);
        return name() + ": the change was " + lastChange;
    }

    /** Those that are missing serve as soon as they have loaded; all else waits for all of them. */
    private CompletableFuture<Void> resize(
            final List<GroupConfig> wanted, final boolean remember) {
        final List<Worker> added = staff.fill(current, wanted);
        if (!added.isEmpty()) {
            dispatcher.setWorkers(current.workers());
            tell("resizing to " + GroupConfig.text(wanted));
        }
        final CompletableFuture<Void> done =
                staff.loaded(added)
                        .thenAccept(status -> onAdded(status, added, wanted, remember));
        resizing = done.isDone() ? null : done;
        return done;
    }

    /** The rest of a resize; fails, and leaves everything as it was, when one did not load. */
    private synchronized void onAdded(
            final int status,
            final List<Worker> added,
            final List<GroupConfig> wanted,
            final boolean remember) {
        try {
            if (retired) {
                return;
            }
            if (status != 200) {
                final String why = staff.undo(added);
                dispatcher.setWorkers(current.workers());
                tell("resizing was undone: a worker did not load: status " + status + why);
                throw new IllegalStateException(lastChange);
            }
            staff.settle(current, wanted);
            serve(current);
            tell("resized to " + GroupConfig.text(wanted));
            if (remember) {
                onChanged();
            }
        } finally {
            resizing = null; // last, so that who sees it sees the result too
        }
    }

    /** Dispatch to a generation's workers and tell everyone how many they are. */
    private void serve(final Generation generation) {
        // Lower first: /ping compares the wanted with the running number at any time.
        model.setMinWorkers(Math.min(model.getMinWorkers(), generation.instances()));
        expected = Math.min(expected, generation.instances());
        current = generation;
        expected = generation.instances();
        dispatcher.setWorkers(generation.workers());
        model.setMinWorkers(generation.instances());
        model.setMaxWorkers(generation.instances());
        served.publishIdentity();
    }

    /** Batches go to a started generation from now on; the old one finishes and ends. */
    synchronized void switchTo(final Generation started) {
        checkPending(started);
        final Generation old = current;
        staff.retireSoon(old.workers()); // first, so that nobody misses them in between
        serve(started);
        old.workers().forEach(staff::drain);
        tell("generation " + started.id + " serves");
        LOGGER.info("{}: {}", name(), lastChange);
        next = null; // who sees that it is over sees the result too
        if (asked != null) {
            scaleAgain(asked[0], asked[1]);
            asked = null;
        }
    }

    /** Fails when a generation that is being started is not wanted any more. */
    void checkPending(final Generation started) {
        if (next != started) {
            throw new IllegalStateException("the model was removed meanwhile");
        }
    }

    /** A generation that was being started has been ended again. */
    synchronized void onUndone(final Generation started, final String reason) {
        tell("generation " + started.id + " was undone: " + reason);
        LOGGER.error("{}: {}; generation {} keeps serving", name(), lastChange, current.id);
        if (next == started) {
            asked = null;
            next = null; // last, as above
        }
    }

    /** The worker groups changed, or who may change them; let the snapshot on disk say so. */
    void onChanged() {
        SnapshotManager.getInstance().saveSnapshot();
    }

    /** A worker has ended for good. */
    void onEnded(final Worker worker) {
        staff.onEnded(worker);
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
}
