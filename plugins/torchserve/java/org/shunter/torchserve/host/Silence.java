package org.shunter.torchserve.host;

/**
 * How long a process that writes a heartbeat has been silent, counted in looks at it: time in which
 * this process stood still too, as in a virtual machine that was suspended, says nothing.
 */
final class Silence {
    /** Looks until the first heartbeat, which comes after all imports, on any host. */
    static final int START_LOOKS = 120;

    private final long intervalNs;
    private final int most;
    private long lastBeat;
    private long lastLookNs;
    private int looks;
    private boolean heard;

    /** Looks come every {@code intervalNs}; after {@code most} of them a process counts as hung. */
    Silence(final long intervalNs, final int most) {
        this.intervalNs = intervalNs;
        this.most = most;
    }

    /** A new process; the heartbeat is its predecessor's. */
    void begin(final long beat, final long nowNs) {
        lastBeat = beat;
        lastLookNs = nowNs;
        looks = 0;
        heard = false;
    }

    /** Look at the heartbeat; whether the process has been silent for too long. */
    boolean look(final long beat, final long nowNs) {
        final boolean slept = nowNs - lastLookNs > 2 * intervalNs;
        lastLookNs = nowNs;
        if (beat != lastBeat) {
            lastBeat = beat;
            heard = true;
            looks = 0;
        } else {
            looks = slept ? 0 : looks + 1;
        }
        return looks >= (heard ? most : START_LOOKS);
    }

    /** Whether nothing was heard for a third of the time after which it counts as hung. */
    boolean isSuspicious() {
        return heard && looks >= Math.max(1, most / 3);
    }

    /** Seconds of silence. */
    long seconds() {
        return looks * intervalNs / 1_000_000_000L;
    }
}
