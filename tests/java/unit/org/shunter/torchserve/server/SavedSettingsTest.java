package org.shunter.torchserve.server;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.gson.JsonSyntaxException;
import org.junit.jupiter.api.Test;

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

    @Test
    void whatIsNoSuchFileIsRefused() {
        assertFalse(saved.restore(""));
        assertFalse(saved.restore("{\"models\": null}"));
        for (final String text : new String[] {"[]", "{\"version\": \"x\"}", "{\"models\": 3}"}) {
            assertThrows(JsonSyntaxException.class, () -> saved.restore(text));
        }
    }
}
