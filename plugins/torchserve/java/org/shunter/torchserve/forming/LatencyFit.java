package org.shunter.torchserve.forming;

/**
 * Predicted latency of a batch, fitted online: {@code fixed + n * perRequest}. Twin of {@code
 * batching/forming/latency.py}, equal bit for bit. Guarded by its dispatcher's lock.
 */
public final class LatencyFit {
    private static final double FORGET = 0.96;
    private static final double FORGET_EARLY = 0.8;
    private static final int EARLY = 20;
    private static final int SKIP = 2;
    private static final double CLIP = 4.0;
    private static final int CLIP_AFTER = 8;
    private static final int SURPRISES = 4;
    private static final double ERROR_WEIGHT = 0.125;
    private static final double SLOPE_MEMORY = 16.0;
    private static final double CAUTION = 2.0;
    private static final double UNVARIED = 0.25;
    private static final int TRY_OF = 32;
    private static final int TRY = 16;

    private double fixedNs;
    private double perRequestNs;
    private double errorNs;
    private long batches;
    private double weight;
    private double size;
    private double latency;
    private double sizeSize;
    private double sizeLatency;
    private int beyond;

    /** Whether anything was observed. */
    public boolean known() {
        return batches > SKIP;
    }

    /** A batch of that many requests, at least 1, took that long. */
    public void observe(final int count, final long latencyNs) {
        batches++;
        if (batches <= SKIP) {
            return;
        }
        final boolean first = batches == SKIP + 1;
        if (first && fixedNs + perRequestNs == 0.0) {
            fixedNs = (double) latencyNs;
        }
        final double seen = clipped(count, (double) latencyNs, first);
        add((double) count, seen);
        solve();
    }

    private double clipped(final int count, final double latencyNs, final boolean first) {
        final double expected = fixedNs + count * perRequestNs;
        double residual = latencyNs - expected;
        final boolean usual = sizeSize >= SLOPE_MEMORY || Math.abs(count - size) < 0.5;
        if (batches > SKIP + CLIP_AFTER && usual) {
            final double bound = CLIP * errorNs;
            if (surprised(residual, bound)) {
                forget(Math.abs(residual));
                return latencyNs;
            }
            residual = Math.max(-bound, Math.min(bound, residual));
        }
        final double distance = Math.abs(residual);
        errorNs = first ? latencyNs * 0.25 : errorNs + ERROR_WEIGHT * (distance - errorNs);
        return expected + residual;
    }

    private boolean surprised(final double residual, final double bound) {
        final int side = Math.abs(residual) <= bound ? 0 : residual > 0 ? 1 : -1;
        beyond = side * beyond > 0 ? beyond + side : side;
        return Math.abs(beyond) >= SURPRISES;
    }

    private void forget(final double error) {
        batches = SKIP + 1;
        beyond = 0;
        errorNs = error;
        weight = 0.0;
        sizeSize = 0.0;
        sizeLatency = 0.0;
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

    /** What one batch less may save, at most. */
    public long worthNs() {
        final boolean tries = sizeSize < UNVARIED && batches % TRY_OF < TRY;
        return (long) (tries ? Math.max(fixedNs, latency / 2.0) : fixedNs);
    }

    /** What is added to a prediction where a deadline is at stake. */
    public long cautionNs() {
        return (long) (CAUTION * errorNs);
    }

    public double fixedNs() {
        return fixedNs;
    }

    public double perRequestNs() {
        return perRequestNs;
    }

    public double errorNs() {
        return errorNs;
    }

    public long batches() {
        return batches;
    }
}
