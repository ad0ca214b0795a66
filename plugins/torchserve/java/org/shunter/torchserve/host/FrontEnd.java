package org.shunter.torchserve.host;

import static org.shunter.torchserve.page.ControlLayout.*;

import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.shunter.torchserve.page.ControlPage;

/**
 * The network front end: started here when the settings ask for it, which the controller says on
 * the control page. Serving by HTTP never waits for it.
 */
public final class FrontEnd {
    /** It writes its numbers five times a second; older ones are of one that is gone. */
    private static final long STALE_NS = 3_000_000_000L;

    private final Host host;
    private Supervisor supervisor;
    private long served;
    private boolean stopped;

    public FrontEnd(final Host host) {
        this.host = host;
    }

    /** Start it, end it, or start it with other settings, as the page says. */
    public synchronized void obey() {
        final long wanted = host.page().get(H_FRONT_END_WANTED);
        if (stopped || wanted == served) {
            return;
        }
        if (supervisor != null) {
            supervisor.stop();
            if (supervisor.isAlive()) {
                return; // it has the port; the next look may find it gone
            }
            supervisor = null;
        }
        served = wanted;
        if (wanted != 0) {
            supervisor =
                    new Supervisor(
                            host,
                            "network front end",
                            arguments(),
                            "HTTP is served as before",
                            () -> host.page().get(H_FRONT_END_BEAT_NS));
            supervisor.start();
        }
    }

    private List<String> arguments() {
        final String runtime = host.runtime().path().toString();
        return host.withSettings(
                List.of("-m", "shunter.plugins.cli.main", "nic", "--runtime", runtime));
    }

    /** It answers what it has and ends; nothing starts it again. */
    public synchronized void stop() {
        stopped = true;
        if (supervisor != null) {
            supervisor.stop();
        }
    }

    /** End it at once. */
    public synchronized void kill() {
        stopped = true;
        if (supervisor != null) {
            supervisor.kill();
        }
    }

    /** Whether one that was started here runs. */
    public synchronized boolean isAlive() {
        return supervisor != null && supervisor.isAlive();
    }

    public synchronized int restarts() {
        return supervisor == null ? 0 : supervisor.restarts();
    }

    /** {@code off}, {@code restarting}, {@code hung} or {@code running}, whoever started it. */
    public synchronized String state() {
        if (isServing()) {
            return "running";
        }
        if (supervisor == null || !host.pythonHasShunter()) {
            return "off";
        }
        return supervisor.state().equals("hung") ? "hung" : "restarting";
    }

    /** Whether one tells its numbers. */
    public boolean isServing() {
        final long beat = host.page().get(H_FRONT_END_BEAT_NS);
        return beat != 0 && System.nanoTime() - beat < STALE_NS;
    }

    /** Its counters by name, in its order. */
    public Map<String, Long> counters() {
        return counters(host.page());
    }

    public static Map<String, Long> counters(final ControlPage page) {
        final long count = page.get(H_FRONT_END_COUNTER_COUNT);
        final Map<String, Long> counters = new LinkedHashMap<>();
        for (int i = 0; i < Math.max(0, Math.min(count, COUNTER_COUNT)); i++) {
            final String name =
                    page.text(
                            H_FRONT_END_COUNTER_NAMES + i * COUNTER_NAME_BYTES,
                            COUNTER_NAME_BYTES);
            counters.put(name, Math.max(0, page.get(H_FRONT_END_COUNTERS + 8 * i)));
        }
        return counters;
    }
}
