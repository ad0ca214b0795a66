package org.shunter.torchserve;

/**
 * Predicted latency of a batch, fitted online: {@code fixed + n * perRequest}. Twin of {@code
 * batching/latency.py}, equal bit for bit. Guarded by its dispatcher's lock.
 */
final class LatencyFit {
    private static final double FORGET = 0.96;
    private static final double FORGET_EARLY = 0.8;
    private static final int EARLY = 20;
    private static final int SKIP = 2;
    private static final double CLIP = 4.0;
    private static final int CLIP_AFTER = 8;
    private static final double ERROR_WEIGHT = 0.125;
    private static final double SLOPE_MEMORY = 16.0;
    private static final double CAUTION = 2.0;

    private double fixedNs;
    private double perRequestNs;
    private double errorNs;
    private long batches;
    private double weight;
    private double size;
    private double latency;
    private double sizeSize;
    private double sizeLatency;

    /** Whether anything was observed. */
    boolean known() {
        return batches > SKIP;
    }

    /** A batch of that many requests, at least 1, took that long. */
    void observe(final int count, final long latencyNs) {
        batches++;
        if (batches <= SKIP) {
            return;
        }
        final boolean first = batches == SKIP + 1;
        if (first && perRequestNs == 0.0 && fixedNs == 0.0) {
            perRequestNs = 0.5 * latencyNs / count;
            fixedNs = 0.5 * latencyNs;
        }
        final double seen = clipped(count, (double) latencyNs, first);
        add((double) count, seen);
        solve();
    }

    private double clipped(final int count, final double latencyNs, final boolean first) {
        final double expected = fixedNs + count * perRequestNs;
        double residual = latencyNs - expected;
        if (batches > SKIP + CLIP_AFTER) {
            final double bound = CLIP * errorNs;
            residual = Math.max(-bound, Math.min(bound, residual));
        }
        final double distance = Math.abs(residual);
        errorNs = first ? latencyNs * 0.25 : errorNs + ERROR_WEIGHT * (distance - errorNs);
        return expected + residual;
    }

    private void add(final double count, final double seen) {
        final double forget = batches <= EARLY ? FORGET_EARLY : FORGET;
        weight = weight * forget + 1.0;
        final double fromMean = count - size;
        size += fromMean / weight;
        latency += (seen - latency) / weight;
        sizeSize = sizeSize * forget + fromMean * (count - size);
        sizeLatency = sizeLatency * forget + fromMean * (seen - latency);
    }

    private void solve() {
        final double slope =
                (sizeLatency + SLOPE_MEMORY * perRequestNs) / (sizeSize + SLOPE_MEMORY);
        perRequestNs = Math.max(0.0, Math.min(slope, latency / size));
        fixedNs = latency - perRequestNs * size;
    }

    /** Predicted latency of a batch. */
    long predictNs(final int count) {
        return (long) (fixedNs + count * perRequestNs);
    }

    /** What is added to a prediction where a deadline is at stake. */
    long cautionNs() {
        return (long) (CAUTION * errorNs);
    }

    double fixedNs() {
        return fixedNs;
    }

    double perRequestNs() {
        return perRequestNs;
    }

    double errorNs() {
        return errorNs;
    }

    long batches() {
        return batches;
    }
}
