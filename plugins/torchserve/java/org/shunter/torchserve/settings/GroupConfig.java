package org.shunter.torchserve.settings;

import java.util.ArrayList;
import java.util.EnumSet;
import java.util.List;
import java.util.Set;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.pytorch.serve.http.BadRequestException;
import org.shunter.torchserve.forming.RequestClass;
import org.shunter.torchserve.page.ControlLayout;

/**
 * One worker group: ⟨instances, threads, batch⟩ and where its workers run.
 *
 * @param instances worker processes
 * @param threads intra-op threads of each, 0 to leave them to the handler
 * @param batch largest batch of each
 * @param classes the classes it takes when the controller says nothing else
 * @param cores Linux cpu list for the group's workers; {@link #AUTO}: each worker chooses and keeps
 *     as many as it has threads; or null
 * @param device value of CUDA_VISIBLE_DEVICES, or null
 * @param preemptible whether its workers stand still for strict work, or null
 */
public record GroupConfig(
        int instances,
        int threads,
        int batch,
        Set<RequestClass> classes,
        String cores,
        String device,
        Boolean preemptible) {
    public static final String AUTO = "auto";
    private static final int LAST_CPU = 8191;
    private static final Pattern TRIPLE =
            Pattern.compile("([0-9]{1,4})x([0-9]{1,4})x([0-9]{1,6})");
    private static final Pattern CORES =
            Pattern.compile("[0-9]{1,5}(-[0-9]{1,5})?(,[0-9]{1,5}(-[0-9]{1,5})?)*");

    /** A group for all classes, anywhere. */
    public static GroupConfig of(final int instances, final int threads, final int batch) {
        return new GroupConfig(
                instances, threads, batch, EnumSet.allOf(RequestClass.class), null, null, null);
    }

    /** The same group with another number of workers. */
    public GroupConfig withInstances(final int count) {
        return new GroupConfig(count, threads, batch, classes, cores, device, preemptible);
    }

    /** The same group with another batch cap. */
    GroupConfig withBatch(final int cap) {
        return new GroupConfig(instances, threads, cap, classes, cores, device, preemptible);
    }

    /** The same group on other cores. */
    public GroupConfig withCores(final String cpus) {
        return new GroupConfig(instances, threads, batch, classes, cpus, device, preemptible);
    }

    /** The same group on another device. */
    public GroupConfig withDevice(final String name) {
        return new GroupConfig(instances, threads, batch, classes, cores, name, preemptible);
    }

    /** This triple with the classes and the placement of another group. */
    private GroupConfig placedLike(final GroupConfig other) {
        return new GroupConfig(
                instances, threads, batch, other.classes, other.cores, other.device, other.preemptible);
    }

    /** Triples with the classes and the places of other groups, by position. */
    public static List<GroupConfig> placedLike(
            final List<GroupConfig> triples, final List<GroupConfig> others) {
        final List<GroupConfig> placed = new ArrayList<>(triples);
        for (int i = 0; i < Math.min(placed.size(), others.size()); i++) {
            placed.set(i, triples.get(i).placedLike(others.get(i)));
        }
        return placed;
    }

    /**
     * Whether its workers keep to cores of their own. Who stands still for strict work may use every
     * core meanwhile, so it chooses none.
     */
    public boolean isPinned() {
        return cores != null
                && (!cores.equals(AUTO) || threads > 0 && !Boolean.TRUE.equals(preemptible));
    }

    /** Whether both configurations can be served by the same processes. */
    public static boolean sameProcesses(final List<GroupConfig> a, final List<GroupConfig> b) {
        if (a.size() != b.size()) {
            return false;
        }
        for (int i = 0; i < a.size(); i++) {
            final GroupConfig one = a.get(i).withInstances(1).withBatch(1);
            if (!one.equals(b.get(i).withInstances(1).withBatch(1))) {
                return false;
            }
        }
        return true;
    }

    /** {@code 2x4x16}: two instances of four threads with batches of at most 16. */
    public String text() {
        return instances + "x" + threads + "x" + batch;
    }

    /** All their workers. */
    public static int instances(final List<GroupConfig> groups) {
        return groups.stream().mapToInt(GroupConfig::instances).sum();
    }

    /** {@code 1x8x32,2x4x16}. */
    public static String text(final List<GroupConfig> groups) {
        final List<String> parts = new ArrayList<>();
        groups.forEach(group -> parts.add(group.text()));
        return String.join(",", parts);
    }

    /**
     * Read a configuration.
     *
     * @throws BadRequestException naming the part that is wrong and what is allowed
     */
    public static List<GroupConfig> parse(final String key, final String text) {
        final List<GroupConfig> groups = new ArrayList<>();
        for (final String part : text.split(",", -1)) {
            final Matcher matcher = TRIPLE.matcher(part.strip());
            if (!matcher.matches()
                    || Integer.parseInt(matcher.group(1)) < 1
                    || Integer.parseInt(matcher.group(3)) < 1) {
                throw new BadRequestException(
                        key + ": \"" + part + "\" is not INSTANCESxTHREADSxBATCH; example:"
                                + " 1x8x32,2x4x16 (threads 0: leave them to the handler)");
            }
            groups.add(
                    of(
                            Integer.parseInt(matcher.group(1)),
                            Integer.parseInt(matcher.group(2)),
                            Integer.parseInt(matcher.group(3))));
        }
        return checkCount(key, groups);
    }

    static List<GroupConfig> checkCount(final String key, final List<GroupConfig> groups) {
        if (groups.size() > ControlLayout.GROUP_COUNT) {
            final String most = " groups, at most " + ControlLayout.GROUP_COUNT;
            throw new BadRequestException(key + ": " + groups.size() + most);
        }
        return groups;
    }

    /** Check a cpu list such as {@code 0-3,8}, or {@code auto}. */
    public static String checkCores(final String key, final String text) {
        if (text.equals(AUTO)) {
            return text;
        }
        if (!CORES.matcher(text).matches()) {
            throw new BadRequestException(
                    key + ": \"" + text + "\" is neither a cpu list nor auto; example: 0-3,8");
        }
        for (final String part : text.split(",")) {
            final String[] ends = part.split("-");
            final int last = Integer.parseInt(ends[ends.length - 1]);
            if (last < Integer.parseInt(ends[0]) || last > LAST_CPU) {
                throw new BadRequestException(
                        key + ": \"" + part + "\" is not a range of CPUs from 0 to " + LAST_CPU);
            }
        }
        return text;
    }
}
