package org.shunter.torchserve.events;

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
import java.util.function.Function;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * A file with a line of JSON for each thing that happens. A thread of its own writes; what it cannot
 * follow is left out and counted, so that nobody waits for a disk. A file that was moved away is
 * made anew.
 */
public final class JsonLines<T> {
    private static final Logger LOGGER = LoggerFactory.getLogger(JsonLines.class);
    private static final int WAITING = 8192;
    private static final long LOOK_MS = 1000;

    private final Path path;
    private final Function<T, JsonObject> asJson;
    private final ArrayBlockingQueue<T> waiting = new ArrayBlockingQueue<>(WAITING);
    private final AtomicLong left = new AtomicLong();
    private BufferedWriter writer;
    private Object key;
    private long nextLookNs = System.nanoTime();
    private boolean told;

    private JsonLines(final Path path, final Function<T, JsonObject> asJson) {
        this.path = path;
        this.asJson = asJson;
    }

    /** One that writes from now on; null where none is wanted. {@code asJson}: on its thread. */
    public static <T> JsonLines<T> of(
            final String path, final String thread, final Function<T, JsonObject> asJson) {
        if (path == null || path.isEmpty()) {
            return null;
        }
        final JsonLines<T> lines = new JsonLines<>(Path.of(path), asJson);
        final Thread writing = new Thread(lines::run, thread);
        writing.setDaemon(true);
        writing.start();
        return lines;
    }

    /** It happened; whoever says so does not wait. */
    public void add(final T happened) {
        if (!waiting.offer(happened)) {
            left.incrementAndGet();
        }
    }

    private void run() {
        try {
            while (true) {
                final T next = waiting.poll(LOOK_MS, TimeUnit.MILLISECONDS);
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
            LOGGER.error("Lines are missing: {}", e.toString());
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

    private void write(final T next) throws IOException {
        if (writer == null) {
            open();
        }
        final long lost = left.getAndSet(0);
        if (lost > 0) {
            final JsonObject json = new JsonObject();
            json.addProperty("left_out", lost);
            writer.write(json + "\n");
        }
        writer.write(asJson.apply(next) + "\n");
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
