package org.shunter.torchserve;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Collection;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** How much memory workers need and how much is left, from {@code /proc} and the cgroup. */
final class HostMemory {
    private static final Pattern KIB = Pattern.compile("(?m)^(\\w+):\\s+(\\d+) kB$");
    private static final Pattern UNUSED = Pattern.compile("(?m)^inactive_file (\\d+)$");
    private static final Pattern GROUP = Pattern.compile("(?m)^0::(/.*)$");
    private static final Path PROC = Path.of("/proc");
    private static final Path CGROUP = Path.of("/sys/fs/cgroup");
    private static final long MIB = 1 << 20;

    private HostMemory() {}

    /**
     * Check that so many workers more, each like the largest of those that serve, find room.
     *
     * @return null, or how much is missing; null too when the host does not tell
     */
    static String shortage(final Collection<Worker> serving, final int more) {
        long largest = 0;
        for (final Worker worker : serving) {
            if (worker.state == WorkerState.READY) {
                largest = Math.max(largest, ofProcess(worker.pid()));
            }
        }
        final long needed = largest * more;
        final long free = available();
        return needed <= free || free < 0
                ? null
                : more
                        + " workers more need about "
                        + needed / MIB
                        + " MiB beside those that serve, and "
                        + free / MIB
                        + " MiB are available";
    }

    /** What a process has for itself, without the files that it maps: bytes. */
    private static long ofProcess(final int pid) {
        final String status = read(PROC.resolve(pid + "/status"));
        return Math.max(0, field(status, "RssAnon")) + Math.max(0, field(status, "RssShmem"));
    }

    /** Bytes that the host and this process's cgroup would still give; -1 when unknown. */
    private static long available() {
        final long host = field(read(PROC.resolve("meminfo")), "MemAvailable");
        long least = host < 0 ? Long.MAX_VALUE : host;
        final Matcher own = GROUP.matcher(read(PROC.resolve("self/cgroup")));
        // This process's group and all above it; in a container the path may not exist.
        Path path = own.find() ? Path.of(own.group(1)) : Path.of("/");
        for (; path != null; path = path.getParent()) {
            least = Math.min(least, leftOf(CGROUP.resolve(path.toString().substring(1))));
        }
        return least == Long.MAX_VALUE ? -1 : least;
    }

    private static long leftOf(final Path group) {
        final long limit = number(read(group.resolve("memory.max")));
        final long used = number(read(group.resolve("memory.current")));
        if (limit < 0 || used < 0) {
            return Long.MAX_VALUE;
        }
        // Pages of files that nobody uses are given back when memory is short.
        final Matcher cache = UNUSED.matcher(read(group.resolve("memory.stat")));
        return limit - used + (cache.find() ? Long.parseLong(cache.group(1)) : 0);
    }

    private static long field(final String text, final String name) {
        final Matcher matcher = KIB.matcher(text);
        while (matcher.find()) {
            if (matcher.group(1).equals(name)) {
                return Long.parseLong(matcher.group(2)) * 1024;
            }
        }
        return -1;
    }

    private static long number(final String text) {
        return text.strip().matches("\\d{1,18}") ? Long.parseLong(text.strip()) : -1;
    }

    private static String read(final Path path) {
        try {
            return Files.readString(path);
        } catch (IOException e) {
            return ""; // not on this host
        }
    }
}
