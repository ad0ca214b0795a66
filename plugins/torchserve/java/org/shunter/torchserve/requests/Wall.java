package org.shunter.torchserve.requests;

import java.time.Instant;

/**
 * One moment by both clocks.
 *
 * @param monotonicNs as {@link System#nanoTime}
 * @param unixUs microseconds since 1970
 */
record Wall(long monotonicNs, long unixUs) {
    private static final long US = 1_000_000;

    static Wall now() {
        final Instant now = Instant.now();
        return new Wall(System.nanoTime(), now.getEpochSecond() * US + now.getNano() / 1000);
    }

    /** Milliseconds since 1970 of an earlier moment. */
    double unixMs(final long atNs) {
        return (unixUs - (monotonicNs - atNs) / 1000) / 1000.0;
    }
}
