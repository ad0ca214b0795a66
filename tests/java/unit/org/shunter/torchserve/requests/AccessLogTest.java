package org.shunter.torchserve.requests;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.logging.log4j.Level;
import org.apache.logging.log4j.LogManager;
import org.apache.logging.log4j.core.LogEvent;
import org.apache.logging.log4j.core.LoggerContext;
import org.apache.logging.log4j.core.config.Configurator;
import org.apache.logging.log4j.core.filter.AbstractFilter;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.shunter.torchserve.events.JsonLines;
import org.shunter.torchserve.forming.RequestClass;
import org.shunter.torchserve.queue.Entry;
import org.shunter.torchserve.queue.Recent;

/** Lines of JSON, on a disk that may be full and in a file that may be moved. */
final class AccessLogTest {
    private static final long PATIENCE_NS = 60_000_000_000L;
    private static final int LINES = 2000;

    @TempDir Path folder;

    private static Recent.Line line(final String id, final String trace) {
        final long now = System.nanoTime();
        return new Recent.Line(
                id, RequestClass.STRICT, now - 3_000_000, Entry.NEVER, now - 2_000_000, now, 4, 1, 0,
                200, "", trace);
    }

    /**
     * The lines that are whole. Not {@code readAllLines}: of a file that grows under it, it takes
     * the end so far for the end of a line, and the newline that comes then for a line more.
     */
    private static List<String> whole(final Path path) throws IOException {
        final String text = Files.exists(path) ? Files.readString(path) : "";
        return text.substring(0, text.lastIndexOf('\n') + 1).lines().toList();
    }

    private static List<String> until(final Path path, final int count)
            throws IOException, InterruptedException {
        final long end = System.nanoTime() + PATIENCE_NS;
        while (System.nanoTime() < end) {
            final List<String> lines = whole(path);
            if (lines.size() >= count) {
                return lines;
            }
            Thread.sleep(10);
        }
        throw new AssertionError("no " + count + " lines in " + path);
    }

    @Test
    void nobodyWantsOne() {
        assertNull(AccessLog.of(null));
        assertNull(AccessLog.of(""));
    }

    @Test
    void aLineForEachRequest() throws Exception {
        final Path path = folder.resolve("log");
        final AccessLog log = AccessLog.of(path.toString());
        log.ended("m/1", line("a", ""));
        log.ended("m/1", line("b\"\n", "00-1-2-01"));
        final List<String> lines = until(path, 2);
        final JsonObject first = JsonParser.parseString(lines.get(0)).getAsJsonObject();
        assertEquals("a", first.get("id").getAsString());
        assertEquals(1.0, first.get("waited_ms").getAsDouble(), 0.001);
        assertEquals(2.0, first.get("ran_ms").getAsDouble(), 0.001);
        assertTrue(first.get("deadline_ms").isJsonNull());
        assertTrue(!first.has("traceparent"));
        final JsonObject second = JsonParser.parseString(lines.get(1)).getAsJsonObject();
        assertEquals("b\"\n", second.get("id").getAsString());
        assertEquals("00-1-2-01", second.get("traceparent").getAsString());
    }

    @Test
    void aFileThatWasMovedIsMadeAnew() throws Exception {
        final Path path = folder.resolve("log");
        final AccessLog log = AccessLog.of(path.toString());
        log.ended("m/1", line("a", ""));
        until(path, 1);
        Files.move(path, folder.resolve("old"));
        until(path, 0);
        final long end = System.nanoTime() + PATIENCE_NS;
        while (!Files.exists(path) && System.nanoTime() < end) {
            Thread.sleep(10);
        }
        log.ended("m/1", line("b", ""));
        assertEquals(1, until(path, 1).size());
        assertEquals(1, Files.readAllLines(folder.resolve("old")).size());
    }

    @Test
    void whatCannotBeWrittenIsGoneAndTheRestIsNot() throws Exception {
        final Path path = folder.resolve("none").resolve("log");
        final AtomicInteger complaints = complaints(path.toString());
        final AccessLog log = AccessLog.of(path.toString());
        log.ended("m/1", line("a", ""));
        final long end = System.nanoTime() + PATIENCE_NS;
        while (complaints.get() == 0 && System.nanoTime() < end) {
            Thread.sleep(10);
        }
        Files.createDirectory(path.getParent());
        while (!Files.exists(path) && System.nanoTime() < end) {
            log.ended("m/1", line("b", ""));
            Thread.sleep(10);
        }
        final List<String> lines = until(path, 2);
        assertTrue(lines.get(0).contains("left_out"));
        assertTrue(lines.get(1).contains("\"b\""));
    }

    /**
     * How often it is said that something could not be written, for that reason: the logs of other
     * tests live on, and miss their folders.
     */
    private static AtomicInteger complaints(final String why) {
        final AtomicInteger count = new AtomicInteger();
        final AbstractFilter filter =
                new AbstractFilter() {
                    @Override
                    public Result filter(final LogEvent event) {
                        final String text = event.getMessage().getFormattedMessage();
                        final boolean isIt = text.contains("Lines are missing") && text.contains(why);
                        count.addAndGet(isIt ? 1 : 0);
                        return Result.NEUTRAL;
                    }
                };
        final String name = JsonLines.class.getName();
        Configurator.setLevel(name, Level.ERROR); // others may turn it off
        final LoggerContext context = (LoggerContext) LogManager.getContext(false);
        context.getConfiguration().getLoggerConfig(name).addFilter(filter);
        return count;
    }

    private static long told(final Path path) throws IOException {
        long count = 0;
        for (final String line : whole(path)) {
            final JsonObject json = JsonParser.parseString(line).getAsJsonObject();
            count += json.has("left_out") ? json.get("left_out").getAsLong() : 1;
        }
        return count;
    }

    @Test
    void ofAFullDiskItIsSaidOnceAndWhatItTookIsCounted() throws Exception {
        final Path full = Path.of("/dev/full");
        assumeTrue(Files.exists(full));
        final Path path = folder.resolve("log");
        Files.createSymbolicLink(path, full);
        final AtomicInteger complaints = complaints("No space left");
        final AccessLog log = AccessLog.of(path.toString());
        for (int i = 0; i < LINES; i++) {
            log.ended("m/1", line("r" + i, ""));
        }
        final long end = System.nanoTime() + PATIENCE_NS;
        while (complaints.get() == 0 && System.nanoTime() < end) {
            Thread.sleep(10);
        }
        final Path disk = folder.resolve("disk");
        Files.createFile(disk);
        Files.createSymbolicLink(folder.resolve("new"), disk);
        Files.move(folder.resolve("new"), path, StandardCopyOption.REPLACE_EXISTING);
        log.ended("m/1", line("after", ""));
        while (told(disk) < LINES + 1 && System.nanoTime() < end) {
            Thread.sleep(10);
        }
        assertEquals(LINES + 1, told(disk));
        assertEquals(1, complaints.get());
    }

    @Test
    void nothingIsGluedToALineThatWasHalfWritten() throws Exception {
        final Path path = folder.resolve("log");
        Files.writeString(path, "{\"id\":\"ha");
        final AccessLog log = AccessLog.of(path.toString());
        log.ended("m/1", line("a", ""));
        final List<String> lines = until(path, 2);
        assertEquals("{\"id\":\"ha", lines.get(0));
        assertTrue(lines.get(1).contains("\"a\""));
    }
}
