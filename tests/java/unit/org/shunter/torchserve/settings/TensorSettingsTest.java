package org.shunter.torchserve.settings;

import static org.junit.jupiter.api.Assertions.assertDoesNotThrow;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.util.Map;
import org.junit.jupiter.api.Test;
import org.pytorch.serve.http.BadRequestException;

/** What {@code tensors} may say where it declares none. */
final class TensorSettingsTest {
    private static final Map<String, Object> SIZES = Map.of("request_bytes", 5000);

    @Test
    void sizesAloneAreThoseOfBodies() {
        assertDoesNotThrow(() -> TensorSettings.check("t", SIZES));
        assertThrows(
                BadRequestException.class,
                () -> TensorSettings.check("t", Map.of("request_bytes", 0)));
        assertThrows(
                BadRequestException.class,
                () -> TensorSettings.check("t", Map.of("request_bytes", 1, "ragged", true)));
    }

    @Test
    void theNetworkNeedsTensorsThatAreDeclared() {
        assertDoesNotThrow(() -> GroupSettings.network(Map.of("tensors", SIZES)));
        assertThrows(
                BadRequestException.class,
                () -> GroupSettings.network(Map.of("tensors", SIZES, "network", "1x1x1")));
    }
}
