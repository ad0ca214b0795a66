package org.shunter.torchserve.server;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.gson.JsonSyntaxException;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.FileTime;
import java.time.Duration;
import java.time.Instant;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** What was kept beside a snapshot, by this version and by others. */
final class SavedSettingsTest {
    private static final String MODELS =
            "\"models\": {\"m/1.0\": {\"configuration\": \"2x1x8\", \"auto\": true}}";

    private final SavedSettings saved = new SavedSettings();

    @Test
    void filesOfEarlierVersionsAndOfThisOneAreUsed() {
        for (final String version : new String[] {"", "\"version\": 1,", "\"more\": [],"}) {
            assertTrue(saved.restore("{" + version + MODELS + "}"));
            assertEquals("2x1x8", saved.of("m/1.0").configuration());
            assertNull(saved.of("n/1.0"));
        }
    }

    @Test
    void aFileOfALaterVersionIsLeftAlone() {
        assertFalse(saved.restore("{\"version\": 2," + MODELS + "}"));
        assertNull(saved.of("m/1.0"));
    }

    private static Path write(final Path file, final String text) throws IOException {
        Files.createDirectories(file.getParent());
        return Files.writeString(file, text);
    }

    @Test
    void whatWasSavedWithASnapshotGoesLongAfterTheSnapshot(@TempDir final Path logs)
            throws IOException {
        final String before = System.setProperty("LOG_LOCATION", logs.toString());
        try {
            final Path folder = logs.resolve("config/.shunter");
            final Path gone = write(folder.resolve("1-snapshot.cfg.json"), "{}");
            final Path kept = write(folder.resolve("2-snapshot.cfg.json"), "{}");
            final Path started = write(folder.resolve("mine.cfg.json"), "{" + MODELS + "}");
            final Path elsewhere = write(folder.resolve("4-snapshot.cfg.json"), "{}");
            for (final Path each : List.of(gone, kept, started)) {
                Files.setLastModifiedTime(
                        each, FileTime.from(Instant.now().minus(Duration.ofDays(31))));
            }
            final Path other = write(folder.resolve("notes.txt"), "");
            write(logs.resolve("config/2-snapshot.cfg"), "");
            write(logs.resolve("config/3-snapshot.cfg"), "");
            saved.load("mine.cfg"); // which lies elsewhere
            saved.save("3-snapshot.cfg", List.of());
            assertFalse(Files.exists(gone));
            for (final Path each :
                    List.of(kept, started, other, elsewhere, folder.resolve("3-snapshot.cfg.json"))) {
                assertTrue(Files.exists(each), each::toString);
            }
        } finally {
            if (before == null) {
                System.clearProperty("LOG_LOCATION");
            } else {
                System.setProperty("LOG_LOCATION", before);
            }
        }
    }

    @Test
    void whatIsNoSuchFileIsRefused() {
        assertFalse(saved.restore(""));
        assertFalse(saved.restore("{\"models\": null}"));
        for (final String text : new String[] {"[]", "{\"version\": \"x\"}", "{\"models\": 3}"}) {
            assertThrows(JsonSyntaxException.class, () -> saved.restore(text));
        }
    }
}
