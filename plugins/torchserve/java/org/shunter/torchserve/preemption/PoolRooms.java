package org.shunter.torchserve.preemption;

import java.util.ArrayList;
import java.util.List;

/** The room in the processes of this server's pool, by their numbers. */
public final class PoolRooms {
    private final List<PoolRoom> rooms = new ArrayList<>();

    /** That of a process; null for a negative number: a worker with a process of its own. */
    public synchronized PoolRoom of(final int number) {
        while (rooms.size() <= number) {
            rooms.add(new PoolRoom(rooms.size()));
        }
        return number < 0 ? null : rooms.get(number);
    }
}
