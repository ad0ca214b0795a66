package org.shunter.torchserve.host;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonParser;

/** Runs what watches the processes of a server without one, for the tests in Python. */
public final class StockTool {
    private StockTool() {}

    /** {@code silence INTERVAL MOST ROWS}: rows of heartbeat and time in a JSON array. */
    public static void main(final String[] args) {
        final Silence silence = new Silence(Long.parseLong(args[1]), Integer.parseInt(args[2]));
        for (final JsonElement element : JsonParser.parseString(args[3]).getAsJsonArray()) {
            final JsonArray row = element.getAsJsonArray();
            final long beat = row.get(0).getAsLong();
            final long now = row.get(1).getAsLong();
            if (row.size() > 2) {
                silence.begin(beat, now);
            } else {
                final boolean hung = silence.look(beat, now);
                System.out.println(hung ? "hung" : silence.isSuspicious() ? "silent" : "fine");
            }
        }
    }
}
