package org.shunter.torchserve.forming;

/** Whether a request that a worker began and did not answer may run again. */
public enum Rerun {
    /** It must not run twice. */
    NEVER,
    /** Once more, alone, if its worker died; not if the worker ran into its response timeout. */
    AFTER_DEATH,
    /** It is idempotent: after a response timeout as well. */
    ALWAYS
}
