package org.shunter.torchserve;

import java.util.ArrayList;
import java.util.List;
import java.util.function.Consumer;

/**
 * Which slices of this machine workers run on. Devices are numbered in the order in which they were
 * first named. Workers are told their slices and do not compute them: this is the only table.
 */
final class Slices {
    private final Consumer<String> warn;
    private final List<String> devices = new ArrayList<>();

    /** {@code warn} is told what makes less of this machine than there is. */
    Slices(final Consumer<String> warn) {
        this.warn = warn;
    }

    /**
     * The slices of workers that were given this.
     *
     * @param cores Linux cpu list, {@link GroupConfig#AUTO} or null
     * @param device value of CUDA_VISIBLE_DEVICES, or null
     */
    SliceSet of(final String cores, final String device) {
        final SliceSet onDevices = device == null ? SliceSet.NONE : ofDevices(device);
        if (!onDevices.isEmpty()) {
            return onDevices;
        }
        return cores == null || cores.equals(GroupConfig.AUTO) ? SliceSet.ALL_CPUS : ofCores(cores);
    }

    /** CPUs among some slices that this process may use; 0 for devices. */
    static int cpus(final SliceSet slices) {
        final int here = Runtime.getRuntime().availableProcessors();
        final int told = slices.cpus();
        return told == ControlLayout.CPU_SLICES ? here : Math.min(here, told);
    }

    private static SliceSet ofCores(final String list) {
        SliceSet found = SliceSet.NONE;
        for (final String part : list.split(",")) {
            final String[] ends = part.split("-");
            final int first = Integer.parseInt(ends[0]);
            found = found.or(SliceSet.ofCpus(first, Integer.parseInt(ends[ends.length - 1])));
        }
        return found;
    }

    /** None for a text that hides all devices: an empty one, or -1. */
    private synchronized SliceSet ofDevices(final String list) {
        SliceSet found = SliceSet.NONE;
        for (final String part : list.split(",")) {
            final String name = part.strip();
            if (!name.isEmpty() && !name.equals("-1")) {
                found = found.or(ofDevice(name));
            }
        }
        return found;
    }

    private SliceSet ofDevice(final String name) {
        if (!devices.contains(name)) {
            devices.add(name);
            if (devices.size() == ControlLayout.DEVICE_COUNT + 1) {
                warn.accept(
                        name
                                + " is one device more than "
                                + ControlLayout.DEVICE_COUNT
                                + ": best-effort work on it, and on those after it, stands still for"
                                + " strict work on any device");
            }
        }
        return SliceSet.ofDevice(devices.indexOf(name), 0, ControlLayout.DEVICE_SLICES);
    }
}
