package org.shunter.torchserve.placement;

import java.util.ArrayList;
import java.util.List;
import java.util.function.Consumer;
import java.util.stream.Collectors;
import org.shunter.torchserve.page.ControlLayout;
import org.shunter.torchserve.page.SliceSet;
import org.shunter.torchserve.settings.GroupConfig;

/**
 * Which slices of this machine workers run on. GPUs are numbered in the order in which they were
 * first named. Workers are told their slices and do not compute them: this is the only table.
 */
public final class Slices {
    private final DeviceNames names;
    private final Consumer<String> warn;
    private final List<String> gpus = new ArrayList<>();

    /** {@code warn} is told what makes less of this machine than there is. */
    public Slices(final DeviceNames names, final Consumer<String> warn) {
        this.names = names;
        this.warn = warn;
    }

    /**
     * The slices of workers that were given this.
     *
     * @param cores Linux cpu list, {@link GroupConfig#AUTO} or null
     * @param device value of CUDA_VISIBLE_DEVICES, or null
     */
    public SliceSet of(final String cores, final String device) {
        final SliceSet onDevices = device == null ? SliceSet.NONE : ofDevices(device);
        if (!onDevices.isEmpty()) {
            return onDevices;
        }
        return cores == null || cores.equals(GroupConfig.AUTO) ? SliceSet.ALL_CPUS : ofCores(cores);
    }

    /** CPUs among some slices that this process may use; 0 for devices. */
    public static int cpus(final SliceSet slices) {
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

    /** A list of devices as in CUDA_VISIBLE_DEVICES, each by its one name. */
    public String named(final String list) {
        final List<DeviceNames.Device> found = names.of(list);
        return found.isEmpty()
                ? list
                : found.stream().map(DeviceNames.Device::name).collect(Collectors.joining(","));
    }

    /** Which device TorchServe means by a number: it counts what this process may see. */
    public static String ofStock(final int number, final String visible) {
        final String[] seen = visible == null || visible.isBlank() ? new String[0] : visible.split(",");
        return number < seen.length ? seen[number].strip() : String.valueOf(number);
    }

    /** None for a text that hides all devices: an empty one, or -1. */
    private SliceSet ofDevices(final String list) {
        SliceSet found = SliceSet.NONE;
        for (final DeviceNames.Device device : names.of(list)) {
            found = found.or(SliceSet.ofDevice(number(device.gpu()), device.start(), device.size()));
        }
        return found;
    }

    private synchronized int number(final String gpu) {
        if (!gpus.contains(gpu)) {
            gpus.add(gpu);
            if (gpus.size() == ControlLayout.DEVICE_COUNT + 1) {
                warn.accept(
                        gpu + " is one device more than " + ControlLayout.DEVICE_COUNT
                                + ": best-effort work on it, and on those after it, stands still for"
                                + " strict work on any device");
            }
        }
        return gpus.indexOf(gpu);
    }
}
