package org.shunter.torchserve.host;

import java.util.ArrayList;
import java.util.List;
import org.shunter.torchserve.preemption.PoolRoom;
import org.shunter.torchserve.queue.WorkerGroup;
import org.shunter.torchserve.settings.PoolSettings;

/**
 * The processes of this server's pool, by number. Models whose workers run at the same place share
 * as many of them as the settings say; a best-effort one that stands still for strict work must not
 * stop a strict one, so how they give way is a part of their place.
 */
public final class Pools {
    private record Place(WorkerGroup.Place where, int gpu) {}

    private final PoolSettings settings;
    private final List<Place> places = new ArrayList<>();
    private final List<PoolRoom> rooms = new ArrayList<>();

    Pools(final PoolSettings settings) {
        this.settings = settings;
    }

    public PoolSettings settings() {
        return settings;
    }

    /**
     * The process for one more worker of a group.
     *
     * @param gpu number of the GPU that TorchServe gives it, or -1
     * @param others those in which workers of the group are already
     * @param first where the first worker goes: models with few shall not all be in the same
     */
    public synchronized PoolRoom next(
            final WorkerGroup.Place where,
            final int gpu,
            final List<PoolRoom> others,
            final int first) {
        final Place place = new Place(where, gpu);
        if (!places.contains(place)) {
            places.add(place);
            for (int i = 0; i < settings.workers(); i++) {
                rooms.add(new PoolRoom(rooms.size()));
            }
        }
        final int from = places.indexOf(place) * settings.workers();
        PoolRoom least = null;
        long fewest = Long.MAX_VALUE;
        for (int i = 0; i < settings.workers(); i++) {
            final PoolRoom room = rooms.get(from + Math.floorMod(first + i, settings.workers()));
            final long taken = others.stream().filter(other -> other == room).count();
            if (taken < fewest) {
                fewest = taken;
                least = room;
            }
        }
        return least;
    }
}
