package org.shunter.torchserve.events;

/** How bad an event is. */
public enum Level {
    INFO,
    WARNING,
    ERROR
}
