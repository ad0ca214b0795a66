package org.shunter.torchserve.requests;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.shunter.torchserve.forming.RequestClass;
import org.shunter.torchserve.queue.Entry;
import org.shunter.torchserve.queue.Recent;

/** Lines of JSON, on a disk that may be full and in a file that may be moved. */
final class AccessLogTest {
    private static final long PATIENCE_NS = 60_000_000_000L;

    @TempDir Path folder;

    private static Recent.Line line(final String id, final String trace) {
        final long now = System.nanoTime();
        return new Recent.Line(
                id, RequestClass.STRICT, now - 3_000_000, Entry.NEVER, now - 2_000_000, now, 4, 1, 0,
                200, "", trace);
    }

    private static List<String> until(final Path path, final int count)
            throws IOException, InterruptedException {
        final long end = System.nanoTime() + PATIENCE_NS;
        while (System.nanoTime() < end) {
            final List<String> lines = Files.exists(path) ? Files.readAllLines(path) : List.of();
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
        final AccessLog log = AccessLog.of(path.toString());
        log.ended("m/1", line("a", ""));
        Thread.sleep(100);
        Files.createDirectory(path.getParent());
        final long end = System.nanoTime() + PATIENCE_NS;
        while (!Files.exists(path) && System.nanoTime() < end) {
            log.ended("m/1", line("b", ""));
            Thread.sleep(10);
        }
        assertTrue(until(path, 1).get(0).contains("\"b\""));
    }
}
