package org.shunter.torchserve.server;

import static org.junit.jupiter.api.Assertions.assertEquals;

import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Until the settings were read, what they mention decides. */
final class StrictClaimsTest {
    @ParameterizedTest
    @CsvSource({
        "allow_strict = 'none', true",
        "allow-strict = 'none', true",
        "strict-secret-file = 'a', true",
        "strict_secret_file = 'a', true",
        "alpha = 0.5, false",
    })
    void keysCountInBothSpellings(final String settings, final boolean mentions) {
        assertEquals(mentions, StrictClaims.mentions(settings));
    }
}
