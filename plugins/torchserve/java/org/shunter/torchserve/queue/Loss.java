package org.shunter.torchserve.queue;

import java.net.HttpURLConnection;

/**
 * Why a worker does not answer what it holds.
 *
 * @param kind what happened
 * @param status HTTP status for requests that are not run again
 * @param cause in words
 */
public record Loss(Kind kind, int status, String cause) {
    /** A request that ended so many workers is the cause. */
    private static final int MAX_DEATHS = 2;

    /** As stock for a worker that was killed from outside, usually for its memory. */
    public static final int INSUFFICIENT_STORAGE = 507;

    public enum Kind {
        /** Its process or its connection ended. */
        DIED,
        /** It was ended because it did not answer in time: what it ran may have had its effects. */
        TIMED_OUT,
        /** It was stopped on purpose, which is no request's fault. */
        STOPPED,
        /** It went with the process that it shared, before it had begun with what it held. */
        UNBEGUN
    }

    public static Loss died(final int status, final String cause) {
        return new Loss(Kind.DIED, status, cause);
    }

    public static Loss timedOut(final String cause) {
        return new Loss(Kind.TIMED_OUT, 500, cause);
    }

    public static Loss unbegun(final String cause) {
        return new Loss(Kind.UNBEGUN, 500, cause);
    }

    public static Loss stopped() {
        return new Loss(Kind.STOPPED, 500, "the worker was stopped");
    }

    /** The number by which TorchServe's jobs know the status: for gRPC it makes a difference. */
    public int jobStatus() {
        return status == INSUFFICIENT_STORAGE ? HttpURLConnection.HTTP_ENTITY_TOO_LARGE : status;
    }

    /** Whether what ran has a part in it. */
    public boolean isDeath() {
        return kind == Kind.DIED || kind == Kind.TIMED_OUT;
    }

    /** Whether a request ended as many workers as it may. */
    public static boolean isPoison(final Entry entry) {
        return entry.deaths >= MAX_DEATHS;
    }

    /** Whether a request that was running may run again; its deaths are counted already. */
    public boolean permitsAnotherRun(final Entry entry) {
        if (entry.streamed || isPoison(entry)) {
            return false;
        }
        if (kind == Kind.UNBEGUN) {
            return true;
        }
        return switch (entry.rerun) {
            case NEVER -> false;
            case AFTER_DEATH -> kind != Kind.TIMED_OUT;
            case ALWAYS -> true;
        };
    }
}
