package org.shunter.torchserve.events;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import org.junit.jupiter.api.Test;
import org.pytorch.serve.http.BadRequestException;

/** What happened in a server: the last of it, by number. */
final class EventsTest {
    private final Events events = new Events(null);

    private JsonArray after(final String number) {
        return events.after(number).getAsJsonArray("events");
    }

    @Test
    void thoseAfterANumberAreToldInOrder() {
        events.tell(Level.INFO, "m/1.0", "it is served");
        events.tell(Level.WARNING, "m/1.0", "a worker was lost: killed");
        assertEquals(2, after(null).size());
        final JsonObject second = after("1").get(0).getAsJsonObject();
        assertEquals("warning", second.get("level").getAsString());
        assertEquals("m/1.0", second.get("about").getAsString());
        assertEquals("a worker was lost: killed", second.get("text").getAsString());
        assertEquals(0, after("2").size());
    }

    @Test
    void whatIsSaidTwiceAtOnceIsOneEvent() {
        events.tell(Level.INFO, "m/1.0", "ended");
        events.tell(Level.INFO, "m/1.0", "ended");
        events.tell(Level.INFO, "n/1.0", "ended");
        assertEquals(2, after(null).size());
    }

    @Test
    void theOldestAreForgotten() {
        for (int i = 0; i < Events.KEPT + 3; i++) {
            events.tell(Level.INFO, "m/1.0", "number " + i);
        }
        assertEquals(Events.KEPT, after(null).size());
        assertEquals(4, after("0").get(0).getAsJsonObject().get("number").getAsLong());
    }

    @Test
    void aNumberIsANumber() {
        for (final String wrong : new String[] {"", "-1", "x", "1.5", "9999999999999999999"}) {
            assertThrows(BadRequestException.class, () -> events.after(wrong));
        }
    }
}
