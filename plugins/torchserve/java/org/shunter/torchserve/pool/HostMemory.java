package org.shunter.torchserve.pool;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Collection;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.shunter.torchserve.queue.WorkerState;
import org.shunter.torchserve.worker.Worker;

/** How much memory workers need and how much is left, from {@code /proc} and the cgroup. */
final class HostMemory {
    private static final Pattern KIB = Pattern.compile("(?m)^(\\w+):\\s+(\\d+) kB$");
    private static final Path PROC = Path.of("/proc");
    private static final long MIB = 1 << 20;

    /** Where a version of cgroups says what; twin of the class in allocator/memory/host.py. */
    private record Hierarchy(
            Pattern own, Path root, String limit, String used, Pattern unused) {}

    private static final Hierarchy V2 =
            new Hierarchy(
                    Pattern.compile("(?m)^0::(/.*)$"),
                    Path.of("/sys/fs/cgroup"),
                    "memory.max",
                    "memory.current",
                    Pattern.compile("(?m)^inactive_file (\\d+)$"));
    private static final Hierarchy V1 =
            new Hierarchy(
                    Pattern.compile("(?m)^\\d+:(?:[^:\\n]*,)?memory(?:,[^:\\n]*)?:(/.*)$"),
                    Path.of("/sys/fs/cgroup/memory"),
                    "memory.limit_in_bytes",
                    "memory.usage_in_bytes",
                    Pattern.compile("(?m)^total_inactive_file (\\d+)$"));

    private HostMemory() {}

    /** Throw when {@link #shortage} says that there is one. */
    static void checkRoom(final Collection<Worker> serving, final int more) {
        final String shortage = more > 0 ? shortage(serving, more) : null;
        if (shortage != null) {
            throw new NoRoomException(shortage);
        }
    }

    /**
     * Check that so many workers more, each like the largest of those that serve, find room.
     *
     * @return null, or how much is missing; null too when the host does not tell
     */
    private static String shortage(final Collection<Worker> serving, final int more) {
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
                : more + " workers more need about " + needed / MIB + " MiB beside those that serve,"
                        + " and " + free / MIB + " MiB are available";
    }

    /** What a process has for itself, without the files that it maps: bytes. */
    private static long ofProcess(final int pid) {
        final String status = read(PROC.resolve(pid + "/status"));
        return Math.max(0, field(status, "RssAnon")) + Math.max(0, field(status, "RssShmem"));
    }

    /** Bytes that the host and this process's cgroups would still give; -1 when unknown. */
    private static long available() {
        final long host = field(read(PROC.resolve("meminfo")), "MemAvailable");
        final long ofHost = host < 0 ? Long.MAX_VALUE : host;
        final long least = Math.min(ofHost, Math.min(leftOf(V2), leftOf(V1)));
        return least == Long.MAX_VALUE ? -1 : least;
    }

    private static long leftOf(final Hierarchy cgroups) {
        final Matcher own = cgroups.own().matcher(read(PROC.resolve("self/cgroup")));
        long least = Long.MAX_VALUE;
        // This process's group and all above it; in a container the path may not exist.
        Path path = own.find() ? Path.of(own.group(1)) : Path.of("/");
        for (; path != null; path = path.getParent()) {
            final Path group = cgroups.root().resolve(path.toString().substring(1));
            least = Math.min(least, leftOf(cgroups, group));
        }
        return least;
    }

    private static long leftOf(final Hierarchy cgroups, final Path group) {
        final long limit = number(read(group.resolve(cgroups.limit())));
        final long used = number(read(group.resolve(cgroups.used())));
        if (limit < 0 || used < 0) {
            return Long.MAX_VALUE;
        }
        // Pages of files that nobody uses are given back when memory is short.
        final Matcher cache = cgroups.unused().matcher(read(group.resolve("memory.stat")));
        return Math.max(0, limit - used + (cache.find() ? Long.parseLong(cache.group(1)) : 0));
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

    /** A number, or -1; without a limit v1 says one of 19 digits, v2 a word. */
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
