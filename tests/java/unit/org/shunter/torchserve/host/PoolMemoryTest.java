package org.shunter.torchserve.host;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** What processes of the pool write is passed on as long as they live. */
class PoolMemoryTest {
    private static final long OURS = ProcessHandle.current().pid();
    /** Above what Linux gives. */
    private static final long NOBODYS = 1L << 23;

    @TempDir Path folder;

    private void write(final String name, final String text) throws IOException {
        Files.writeString(folder.resolve(name), text);
    }

    @Test
    void thoseThatLiveAreToldByTheirNumbers() throws IOException {
        write("pool.10.json", "{\"pool\": 10, \"pid\": " + OURS + ", \"hits\": 3, \"more\": [1]}");
        write("pool.2.json", "{\"pool\": 2, \"pid\": " + OURS + ", \"hot\": [\"a/1.0\"]}");
        final JsonArray pools = PoolMemory.of(folder).getAsJsonArray("pools");
        assertEquals(2, pools.size());
        final JsonObject last = pools.get(1).getAsJsonObject();
        assertEquals("[\"a/1.0\"]", pools.get(0).getAsJsonObject().get("hot").toString());
        assertEquals(10, last.get("pool").getAsInt());
        assertEquals("[1]", last.get("more").toString());
        assertTrue(last.get("age_ms").getAsLong() < 600_000);
    }

    @Test
    void whatCannotBeReadIsLeftOut() throws IOException {
        write("pool.0.json", "{\"pool\": 0, \"pid\": " + NOBODYS + "}");
        write("pool.1.json", "{\"pool\": 1, \"pid\":");
        write("pool.2.json", "[]");
        write("pool.3.json", "{\"pool\": \"x\", \"pid\": " + OURS + "}");
        write("pool.4.json", "");
        write("pool.5.json.new", "{\"pool\": 5, \"pid\": " + OURS + "}");
        assertEquals("{\"pools\":[]}", PoolMemory.of(folder).toString());
        assertEquals("{\"pools\":[]}", PoolMemory.of(folder.resolve("none")).toString());
    }
}
