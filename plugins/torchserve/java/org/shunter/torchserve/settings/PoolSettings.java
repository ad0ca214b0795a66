package org.shunter.torchserve.settings;

import static org.shunter.torchserve.settings.SettingValues.refusal;

import java.util.List;
import java.util.Map;
import org.pytorch.serve.http.BadRequestException;

/**
 * The processes in which several models have their workers.
 *
 * @param all whether models that say nothing are served so
 * @param workers how many there are
 * @param hotMb hot memory of each, 0: it chooses
 * @param threads threads of an operator in each, 0: its share of the CPUs
 * @param cores CPUs that are divided among them, or {@code auto}; null: they run everywhere
 */
public record PoolSettings(boolean all, int workers, int hotMb, int threads, String cores) {
    static final String KEY = "pool";
    static final String SHARED = "shared";
    /** As many as {@code handlers/pool/seat.py} takes. */
    private static final int MOST = 64;

    private static final String NOWHERE = "-";

    /** What {@code plugins/control/settings.py} prints. */
    public static PoolSettings parse(final String line) {
        final String[] words = line.strip().split(" ");
        if (words.length != 5) {
            throw new IllegalArgumentException("\"" + line + "\" are no settings of a pool");
        }
        return new PoolSettings(
                Integer.parseInt(words[0]) != 0,
                Math.max(1, Math.min(Integer.parseInt(words[1]), MOST)),
                Math.max(0, Integer.parseInt(words[2])),
                Math.max(0, Integer.parseInt(words[3])),
                words[4].equals(NOWHERE) ? null : words[4]);
    }

    /** As the environment of the server has them, where it has no settings. */
    public static PoolSettings of(final Map<String, String> environment) {
        final StringBuilder line = new StringBuilder("0");
        for (final String name : List.of("WORKERS", "HOT_MB", "THREADS")) {
            final String value = environment.getOrDefault("SHUNTER_POOL_" + name, "");
            line.append(' ').append(value.matches("[0-9]{1,6}") ? value : "0");
        }
        final String cores = environment.getOrDefault("SHUNTER_POOL_CORES", "");
        line.append(' ').append(cores.matches("auto|[0-9,-]{1,256}") ? cores : NOWHERE);
        return parse(line.toString());
    }

    /** Where all of them run; null: that is not said, or chosen by each. */
    public String list() {
        return GroupConfig.AUTO.equals(cores) ? null : cores;
    }

    /** What a model says of it, null when nothing. */
    static Boolean ofModel(final Map<String, Object> map) {
        final Object value = map.get(KEY);
        if (value == null) {
            return null;
        }
        if (!SHARED.equals(value) && !"dedicated".equals(value)) {
            throw refusal("shunter.pool", value, "shared, dedicated");
        }
        if (SHARED.equals(value)) {
            for (final String other : List.of("cores", "device", "groups")) {
                if (map.containsKey(other)) {
                    throw cannot(other);
                }
            }
            if (Boolean.TRUE.equals(map.get("auto"))) {
                throw cannot("auto: true");
            }
        }
        return SHARED.equals(value);
    }

    private static BadRequestException cannot(final String other) {
        return new BadRequestException(
                "shunter.pool: shared is not possible together with shunter."
                        + other
                        + ": its workers run where other models do");
    }
}
