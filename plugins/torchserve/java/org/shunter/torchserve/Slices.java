package org.shunter.torchserve;

import java.util.ArrayList;
import java.util.List;

/**
 * Which parts of this machine workers may run on, as bits of a mask: CPU c is bit c % 48, devices
 * follow in the order in which they were first named. Workers are told their mask and do not
 * compute it: this is the only table.
 */
final class Slices {
    private static final int CPUS = 48;
    private static final int DEVICES = 16;
    /** Every CPU. */
    static final long ALL_CPUS = (1L << CPUS) - 1;

    private final List<String> devices = new ArrayList<>();

    /**
     * The mask of workers that were given this.
     *
     * @param cores Linux cpu list, {@link GroupConfig#AUTO} or null
     * @param device value of CUDA_VISIBLE_DEVICES, or null
     */
    long of(final String cores, final String device) {
        final long onDevices = device == null ? 0 : ofDevices(device);
        if (onDevices != 0) {
            return onDevices;
        }
        return cores == null || cores.equals(GroupConfig.AUTO) ? ALL_CPUS : ofCores(cores);
    }

    /** CPUs of a mask that this process may use; 0 for devices. */
    static int cpus(final long mask) {
        final int here = Runtime.getRuntime().availableProcessors();
        return (mask & ALL_CPUS) == ALL_CPUS ? here : Math.min(here, Long.bitCount(mask & ALL_CPUS));
    }

    /** Whether a mask names a device. */
    static boolean hasDevice(final long mask) {
        return (mask & ~ALL_CPUS) != 0;
    }

    private static long ofCores(final String list) {
        long mask = 0;
        for (final String part : list.split(",")) {
            final String[] ends = part.split("-");
            final int first = Integer.parseInt(ends[0]);
            final int last = Integer.parseInt(ends[ends.length - 1]);
            for (int cpu = first; cpu <= Math.min(last, first + CPUS - 1); cpu++) {
                mask |= 1L << cpu % CPUS;
            }
        }
        return mask;
    }

    /** None for a text that hides all devices: an empty one, or -1. */
    private synchronized long ofDevices(final String list) {
        long mask = 0;
        for (final String part : list.split(",")) {
            final String name = part.strip();
            if (name.isEmpty() || name.equals("-1")) {
                continue;
            }
            if (!devices.contains(name)) {
                devices.add(name);
            }
            mask |= 1L << CPUS + devices.indexOf(name) % DEVICES;
        }
        return mask;
    }
}
