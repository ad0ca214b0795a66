"""GPUs as bars of memory slices with the instances in them, and who runs on each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from shunter.allocator.cpus.cpu_list import format_cpu_list
from shunter.allocator.devices.geometry import Layout, Placement, Profile, Profiles, text_of
from shunter.allocator.devices.instances import GpuInstance, GpuRecord, open_slices

GIB = 1 << 30
COLOURS = {1: "cyan", 2: "green", 3: "yellow", 4: "magenta", 7: "blue"}
"""Of instances, by their compute slices."""
NARROW, WIDE = 7, 13
"""Columns of a memory slice."""


class Piece(NamedTuple):
    """A part of a bar."""

    start: int
    size: int
    lines: tuple[str, ...]
    style: str


def render(
    records: Sequence[GpuRecord], models: Mapping[int | str, str], width: int, note: str = ""
) -> Group:
    """All GPUs; ``models``: which model a process serves, by pid, or a device, by UUID."""
    parts: list[RenderableType] = [Text(note, style="bold")] if note else []
    for each in records:
        parts += ["", Text(_head(each)), *_picture(each, models, width)]
    return Group(*parts)


class NodeRecord(NamedTuple):
    """Cores of one NUMA node."""

    node: int
    cores: int
    holders: dict[int, list[int]]
    """Pids that have claimed a CPU, by its number."""

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        held = {str(cpu): pids for cpu, pids in self.holders.items() if pids}
        cpus = format_cpu_list(self.holders)
        return {"node": self.node, "cores": self.cores, "cpus": cpus, "held": held}


def render_host(nodes: Sequence[NodeRecord], models: Mapping[int | str, str]) -> Table:
    """The cores of the host; sets of them are slices too."""
    table = Table(box=None, padding=(0, 2, 0, 0), title="cores of this host", title_justify="left")
    for name in ("NUMA node", "CPUs", "cores", "held by"):
        table.add_column(name, justify="right" if name == "cores" else "left", overflow="fold")
    for each in nodes:
        cpus: dict[int, list[int]] = {}
        for cpu, pids in each.holders.items():
            for pid in pids:
                cpus.setdefault(pid, []).append(cpu)
        held = [f"{format_cpu_list(mine)}: {who([pid], models)}" for pid, mine in cpus.items()]
        numbers = format_cpu_list(each.holders)
        table.add_row(str(each.node), numbers, str(each.cores), "\n".join(held) or "nobody")
    return table


def render_layouts(profiles: Profiles, layouts: Sequence[Layout], width: int) -> Group:
    """Layouts, one bar each."""
    known = {profile.id: profile for profile in profiles}
    length = max(each.end for profile in profiles for each in profile.placements())
    parts: list[RenderableType] = []
    for layout in layouts:
        pieces = [_of(each, known[each.profile], known[each.profile].kind) for each in layout]
        *bar, _ = _bar(length, pieces, open_slices(layout, profiles), _cell(length, width))
        parts += [Text(text_of(layout, profiles)), *bar]
    return Group(*parts)


def who(pids: Sequence[int], models: Mapping[int | str, str]) -> str:
    """Processes, with the models that they serve as far as that is known."""
    return ", ".join(
        f"{models[pid]} (pid {pid})" if pid in models else f"pid {pid}" for pid in pids
    )


def _head(each: GpuRecord) -> str:
    mig = {"none": "no MIG", "waits for a reset": "MIG waits for a reset"}
    state = mig.get(each.mig, f"MIG {each.mig}")
    used = f"{each.used_bytes / GIB:.1f} of " if each.used_bytes else ""
    return (
        f"{each.index}  {each.name}  {used}{each.memory_bytes / GIB:.0f} GiB  {state}  {each.uuid}"
    )


def _picture(
    each: GpuRecord, models: Mapping[int | str, str], width: int
) -> Iterator[RenderableType]:
    if each.mig != "on":
        label = who(each.pids, models) or "nobody"
        pieces = [Piece(0, each.slices, ("whole GPU", label), "bold")]
        yield from _bar(each.slices, pieces, set(), _cell(each.slices, width))
        return
    pieces = []
    for instance in each.instances:
        profile = each.profile_of(instance)
        if instance.placement and profile:
            keys = [part.uuid for part in instance.parts if part.uuid in models]
            served = {models[key] for key in keys or instance.pids if key in models}
            busy = ", ".join(sorted(served)) or ("busy" if instance.pids else "")
            lines = (instance.profile, busy) if busy else (instance.profile,)
            pieces.append(_of(instance.placement, profile, *lines))
    yield from _bar(each.slices, pieces, each.open_slices(), _cell(each.slices, width))
    if each.instances:
        yield _table(each, models)


def _of(place: Placement, profile: Profile, *lines: str) -> Piece:
    return Piece(place.start, place.size, lines, COLOURS.get(profile.compute, "white"))


def _cell(slices: int, width: int) -> int:
    return max(NARROW, min(WIDE, (width - 3) // slices)) if slices > 1 else max(20, width // 2)


def _bar(slices: int, pieces: Sequence[Piece], free: set[int], cell: int) -> Iterator[Text]:
    """Three lines or four, and the numbers of the slices."""
    taken = {at for piece in pieces for at in range(piece.start, piece.start + piece.size)}
    rest = [
        Piece(at, 1, ("free",) if at in free else ("░" * (cell - 1),), "dim")
        for at in range(slices)
        if at not in taken
    ]
    row = sorted([*pieces, *rest])
    widths = [piece.size * cell - 1 for piece in row]
    yield Text("┌" + "┬".join("─" * width for width in widths) + "┐")
    for line in range(max(len(piece.lines) for piece in row)):
        text = Text("│")
        for piece, width in zip(row, widths, strict=True):
            words = piece.lines[line] if line < len(piece.lines) else ""
            text.append(_fit(words, width).center(width), piece.style)
            text.append("│")
        yield text
    yield Text("└" + "┴".join("─" * width for width in widths) + "┘")
    if slices > 1:
        yield Text("".join(f" {at}".ljust(cell) for at in range(slices)), style="dim")


def _fit(words: str, width: int) -> str:
    return words if len(words) <= width else words[: max(0, width - 1)] + "…"


def _table(each: GpuRecord, models: Mapping[int | str, str]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("slices", "instance", "SMs", "memory GiB", "MIG device", "who runs there"):
        is_number = name in ("SMs", "memory GiB")
        table.add_column(
            name,
            justify="right" if is_number else "left",
            overflow="fold",
            no_wrap=name == "instance",
        )
    for instance in each.instances:
        for part in instance.parts:
            used = f"{part.used_bytes / GIB:.1f} of " if part.used_bytes else ""
            table.add_row(
                _place(instance),
                instance.profile,
                _multiprocessors(each, instance),
                f"{used}{part.memory_bytes / GIB:.2f}",
                part.uuid,
                who(part.pids, models) or models.get(part.uuid, "-"),
            )
        if not instance.parts:
            table.add_row(_place(instance), instance.profile, "", "", "none", "-")
    return table


def _place(instance: GpuInstance) -> str:
    place = instance.placement
    if place is None:
        return "?"  # Who may not list instances is not told.
    return str(place.start) if place.size == 1 else f"{place.start}-{place.end - 1}"


def _multiprocessors(each: GpuRecord, instance: GpuInstance) -> str:
    profile = each.profile_of(instance)
    return str(profile.multiprocessors) if profile else "?"
