package org.shunter.torchserve.settings;

import java.util.List;

/**
 * How many CPUs worker groups want at once, against how many there are.
 *
 * @param pinned threads of workers that shall have CPUs of their own
 * @param all threads of all workers that say how many they have
 * @param cpus CPUs that this server may use
 */
public record CpuDemand(int pinned, int all, int cpus) {

    /** The demand of groups whose places are known, on this machine. */
    public static CpuDemand of(final List<GroupConfig> placed) {
        int pinned = 0;
        int all = 0;
        for (final GroupConfig group : placed) {
            final int threads = group.instances() * group.threads();
            all += threads;
            pinned += group.isPinned() && group.cores().equals(GroupConfig.AUTO) ? threads : 0;
        }
        return new CpuDemand(pinned, all, Runtime.getRuntime().availableProcessors());
    }

    /** Why not every worker can have CPUs of its own, or null. */
    public String whyNotPinned() {
        return pinned <= cpus
                ? null
                : "cores: auto gives each thread a CPU of its own; "
                        + pinned
                        + " threads, "
                        + cpus
                        + " CPUs; ask for fewer instances or threads, or leave cores out";
    }

    /** What is to be said of more threads than CPUs, or null. */
    public String warning() {
        return all <= cpus
                ? null
                : all + " threads share " + cpus + " CPUs: batches will take longer than profiled";
    }
}
