package org.shunter.torchserve.requests;

import com.google.gson.JsonObject;
import java.io.BufferedWriter;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.nio.file.attribute.BasicFileAttributes;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.shunter.torchserve.queue.Recent;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * A line of JSON for each request that ends, in the file that {@code SHUNTER_ACCESS_LOG} names. A
 * thread of its own writes; what it cannot follow is left out and counted, so that no request waits
 * for a disk. A file that was moved away is made anew.
 */
public final class AccessLog {
    /** Environment: its path. */
    public static final String VARIABLE = "SHUNTER_ACCESS_LOG";

    private static final Logger LOGGER = LoggerFactory.getLogger(AccessLog.class);
    private static final int WAITING = 8192;
    private static final long LOOK_MS = 1000;

    private record Ended(String model, Recent.Line line) {}

    private final Path path;
    private final ArrayBlockingQueue<Ended> waiting = new ArrayBlockingQueue<>(WAITING);
    private final AtomicLong left = new AtomicLong();
    private BufferedWriter writer;
    private Object key;
    private long nextLookNs = System.nanoTime();
    private boolean told;

    private AccessLog(final Path path) {
        this.path = path;
    }

    /** One that writes from now on; null where none is wanted. */
    public static AccessLog of(final String path) {
        if (path == null || path.isEmpty()) {
            return null;
        }
        final AccessLog log = new AccessLog(Path.of(path));
        final Thread thread = new Thread(log::run, "shunter-access-log");
        thread.setDaemon(true);
        thread.start();
        return log;
    }

    /** A request ended; called under its dispatcher's lock. */
    public void ended(final String model, final Recent.Line line) {
        if (!waiting.offer(new Ended(model, line))) {
            left.incrementAndGet();
        }
    }

    private void run() {
        try {
            while (true) {
                final Ended next = waiting.poll(LOOK_MS, TimeUnit.MILLISECONDS);
                try {
                    if (next != null) {
                        write(next);
                    }
                    openAgainIfMoved();
                    told = false;
                } catch (IOException e) {
                    complain(e);
                }
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    /** A full disk is said once, and again when it was better in between. */
    private void complain(final IOException e) {
        if (!told) {
            LOGGER.error("Requests are not logged: {}", e.toString());
        }
        told = true;
        try {
            if (writer != null) {
                writer.close();
            }
        } catch (IOException again) {
            LOGGER.debug("It could not be closed, either", again);
        }
        writer = null;
    }

    private void write(final Ended next) throws IOException {
        if (writer == null) {
            open();
        }
        final long lost = left.getAndSet(0);
        if (lost > 0) {
            final JsonObject json = new JsonObject();
            json.addProperty("left_out", lost);
            writer.write(json + "\n");
        }
        writer.write(RequestStories.json(next.model, next.line, Wall.now()) + "\n");
        if (waiting.isEmpty()) {
            writer.flush();
        }
    }

    private void open() throws IOException {
        writer =
                Files.newBufferedWriter(
                        path,
                        StandardCharsets.UTF_8,
                        StandardOpenOption.CREATE,
                        StandardOpenOption.APPEND);
        key = keyOf(path);
    }

    private void openAgainIfMoved() throws IOException {
        final long now = System.nanoTime();
        if (now - nextLookNs < 0) {
            return;
        }
        nextLookNs = now + LOOK_MS * 1_000_000;
        if (writer != null && (!Files.exists(path) || !keyOf(path).equals(key))) {
            writer.close();
            open();
        }
    }

    private static Object keyOf(final Path path) throws IOException {
        final Object found = Files.readAttributes(path, BasicFileAttributes.class).fileKey();
        return found == null ? path : found;
    }
}
