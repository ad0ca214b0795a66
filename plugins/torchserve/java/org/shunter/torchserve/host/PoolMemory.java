package org.shunter.torchserve.host;

import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.IOException;
import java.nio.file.DirectoryIteratorException;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;

/**
 * What the processes of the pool say of the weights that they hold: each writes a file in the
 * runtime folder. One that was killed leaves its file there, which counts no more.
 */
public final class PoolMemory {
    private static final String FILES = "pool.*.json";

    private PoolMemory() {}

    /** For {@code GET /shunter/memory}. */
    public static JsonObject of(final Path runtime) {
        final JsonArray pools = new JsonArray();
        read(runtime).forEach(pools::add);
        final JsonObject json = new JsonObject();
        json.add("pools", pools);
        return json;
    }

    /** What those that live say, by their numbers. */
    public static List<JsonObject> read(final Path runtime) {
        final List<JsonObject> found = new ArrayList<>();
        try (DirectoryStream<Path> files = Files.newDirectoryStream(runtime, FILES)) {
            for (final Path file : files) {
                final JsonObject told = readOne(file);
                if (told != null) {
                    found.add(told);
                }
            }
        } catch (IOException | DirectoryIteratorException e) {
            return List.of(); // the server is ending
        }
        found.sort(Comparator.comparingInt(told -> told.get("pool").getAsInt()));
        return found;
    }

    /** One that has ended has no program, even where nobody waits for its end. */
    private static boolean isAlive(final long pid) {
        return ProcessHandle.of(pid).flatMap(process -> process.info().command()).isPresent();
    }

    /** Null when it has ended, or did not say who it is. */
    private static JsonObject readOne(final Path file) {
        try {
            final JsonObject told = JsonParser.parseString(Files.readString(file)).getAsJsonObject();
            final long ageMs =
                    System.currentTimeMillis() - Files.getLastModifiedTime(file).toMillis();
            told.addProperty("age_ms", ageMs);
            told.get("pool").getAsInt();
            return isAlive(told.get("pid").getAsLong()) ? told : null;
        } catch (IOException | RuntimeException e) { // not a number, not there, ended meanwhile
            return null;
        }
    }
}
