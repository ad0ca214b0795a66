"""The setting in which a server is best: each axis is widened until the rate falls. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

Setting = dict[str, int]
Axes = Mapping[str, Sequence[int]]
FALLS = 2
"""Values in a row that are no better than the best: one may be scatter."""
PASSES = 2


def widen(rate: Callable[[Setting], float], axes: Axes) -> tuple[Setting, float]:
    """The best setting that was met, and its rate.

    Axes one after the other from their first values on, upwards until the rate falls or there are
    no more; and once more from the best, because one axis may need another. No setting twice.

    >>> widen(lambda s: min(s["streams"], 4) * s["batch"], {"streams": (1, 2, 4, 8), "batch": (1,)})
    ({'streams': 4, 'batch': 1}, 4)
    """
    known: dict[tuple[int, ...], float] = {}

    def measured(setting: Setting) -> float:
        key = tuple(setting[axis] for axis in axes)
        if key not in known:
            known[key] = rate(setting)
        return known[key]

    best = {axis: values[0] for axis, values in axes.items()}
    measured(best)
    for _ in range(PASSES):
        begun = best
        for axis, values in axes.items():
            worse = 0
            for value in values[values.index(best[axis]) + 1 :]:
                setting = {**best, axis: value}
                if measured(setting) > measured(best):
                    best, worse = setting, 0
                elif (worse := worse + 1) == FALLS:
                    break
        if best == begun:
            break
    return best, measured(best)
