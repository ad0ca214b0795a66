"""In which settings the sides of rpc_load are loaded: each in the one in which it is fastest."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from common import Row, committed_samples
from rivals.process import RivalFailed

from rpc.loaded import FAILURES, Loaded, fits
from rpc.models import RpcModel
from rpc.namespaces import Place
from rpc.widen import Setting, widen

NAME = "rpc_load"
WARM_UP_S = 3.0
TRIES = 2
"""A server that hangs may owe that to the load before."""
BUSY = 64
"""Requests on their way with which a --quick run asks, where no full run has chosen."""


@dataclass(frozen=True)
class Cell:
    """What is compared in paired rounds."""

    place: Place
    model: RpcModel
    clients: int

    @property
    def key(self) -> str:
        """As the headline names it."""
        return f"{self.model.label}_{self.clients}c_{self.place.name}"


Settings = dict[tuple[str, str, int], Setting]
"""By side, model and clients."""


def select(cells: Sequence[Cell], every: Sequence[Loaded], seconds: float) -> tuple[Settings, list]:
    """The best setting of each side for each number of clients, at the first place it reaches."""
    settings: Settings = {}
    rows: list[Row] = []
    for cell in cells:
        for side in every:
            key = side.name, cell.model.label, cell.clients
            if key in settings or not side.reaches(cell.place):
                continue

            def rate(setting: Setting, cell: Cell = cell, side: Loaded = side) -> float:
                for _ in range(TRIES):
                    row: Row = {"selected_at": cell.key, "side": side.name, **setting}
                    try:
                        row |= side.measure(cell.place, cell.model, cell.clients, setting, seconds)
                    except FAILURES as error:
                        rows.append({**row, "error": str(error)})
                        hangs = isinstance(error, RivalFailed)
                        if hangs or not side.is_alive():
                            side.restart()
                        if not hangs:
                            return 0.0  # not with this setting, then
                    else:
                        rows.append(row)
                        return row["rps"]
                return 0.0

            settings[key], best = widen(rate, side.values(cell.model, cell.clients))
            print(f"{cell.key} | {side.name}: {settings[key]}, {best:.0f}/s", file=sys.stderr)
    return settings, rows


def without_selection(cells: Sequence[Cell], every: Sequence[Loaded]) -> Settings:
    """What the last full run chose, else BUSY requests on their way and batches of eight."""
    for side in every:  # Java compiles what runs through it first; a selection has done that
        if side.rival == "torchserve":
            setting = {"streams": 1, "batch": 8, "instances": 1}
            side.measure(cells[0].place, cells[0].model, BUSY, setting, WARM_UP_S)
    chosen = {(s["side"], s["model"], s["clients"]): s["setting"] for s in _chosen()}
    settings: Settings = {}
    for cell in cells:
        for side in every:
            key = side.name, cell.model.label, cell.clients
            guess = {"streams": max(1, BUSY // cell.clients), "batch": 8, "instances": 1}
            found = chosen.get(key) or {axis: guess[axis] for axis in side.axes}
            if "streams" in found and not fits(cell.model, cell.clients, found["streams"]):
                found = {**found, "streams": guess["streams"]}
            settings[key] = found
    return settings


def _chosen() -> list[Row]:
    return [sample for sample in committed_samples(NAME) if "setting" in sample]
