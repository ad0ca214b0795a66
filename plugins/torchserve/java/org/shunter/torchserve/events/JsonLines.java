package org.shunter.torchserve.events;

import com.google.gson.JsonObject;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.SeekableByteChannel;
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
    /** So many characters are written at once, or fewer when nothing more waits. */
    private static final int CHUNK = 8192;

    private final Path path;
    private final Function<T, JsonObject> asJson;
    private final ArrayBlockingQueue<T> waiting = new ArrayBlockingQueue<>(WAITING);
    private final AtomicLong left = new AtomicLong();
    private final StringBuilder text = new StringBuilder();
    private SeekableByteChannel file;
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
                } catch (IOException e) {
                    complain(e);
                }
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    /** A full disk is said once, and again when something could be written in between. */
    private void complain(final IOException e) {
        if (!told) {
            LOGGER.error("Lines are missing: {}", e.toString());
        }
        told = true;
        try {
            if (file != null) {
                file.close();
            }
        } catch (IOException again) {
            LOGGER.debug("It could not be closed, either", again);
        }
        file = null;
    }

    private void write(final T next) throws IOException {
        text.append(asJson.apply(next)).append('\n');
        if (waiting.isEmpty() || text.length() >= CHUNK) {
            flush();
        }
    }

    /** What of it does not get into the file is left out. */
    private void flush() throws IOException {
        final ByteBuffer bytes = bytes(text.toString());
        text.setLength(0);
        try {
            if (file == null) {
                open();
            }
            final long lost = left.get();
            if (lost > 0) {
                final JsonObject json = new JsonObject();
                json.addProperty("left_out", lost);
                put(bytes(json + "\n"));
                left.addAndGet(-lost); // not before, because that may fail, too
            }
            put(bytes);
            told = false;
        } finally {
            while (bytes.hasRemaining()) {
                if (bytes.get() == '\n') {
                    left.incrementAndGet();
                }
            }
        }
    }

    private static ByteBuffer bytes(final String lines) {
        return ByteBuffer.wrap(lines.getBytes(StandardCharsets.UTF_8));
    }

    private void put(final ByteBuffer bytes) throws IOException {
        while (bytes.hasRemaining()) {
            file.write(bytes);
        }
    }

    private void open() throws IOException {
        final boolean isCut = endsInsideALine();
        file = Files.newByteChannel(path, StandardOpenOption.CREATE, StandardOpenOption.APPEND);
        key = keyOf(path);
        if (isCut) {
            put(bytes("\n"));
        }
    }

    /** Whether the file's last line was only half written: the disk was full, or a server killed. */
    private boolean endsInsideALine() throws IOException {
        if (!Files.isRegularFile(path) || Files.size(path) == 0 || !Files.isReadable(path)) {
            return false;
        }
        final ByteBuffer last = ByteBuffer.allocate(1);
        try (SeekableByteChannel found = Files.newByteChannel(path)) {
            found.position(found.size() - 1).read(last);
        }
        return last.get(0) != '\n';
    }

    private void openAgainIfMoved() throws IOException {
        final long now = System.nanoTime();
        if (now - nextLookNs < 0) {
            return;
        }
        nextLookNs = now + LOOK_MS * 1_000_000;
        if (file != null && (!Files.exists(path) || !keyOf(path).equals(key))) {
            file.close();
            open();
        }
    }

    private static Object keyOf(final Path path) throws IOException {
        final Object found = Files.readAttributes(path, BasicFileAttributes.class).fileKey();
        return found == null ? path : found;
    }
}
