"""A model's latency by threads and batch size, as measured (Packrat section 3.2).

A profile is JSON beside the model: where it was measured, of what, and one cell per ⟨threads,
batch⟩. :mod:`shunter.allocator.planning.profile_table` makes of it the latency of *every* integer
batch size and number of threads.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, field, replace
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, SkipValidation, ValidationError, model_validator
from pydantic.dataclasses import dataclass

from shunter.allocator.planning.allowed import allowed

VERSION = 1
MAX_THREADS = 1024
"""With the next one a bound of the table that is made of a file: 32 MiB."""
LARGEST_BATCH = 4096
MAX_CORES = 8192
FORMAT = "shunter-profile"
BUSY = 0.2
"""CPUs that something else may use before latencies are too high to act on."""
DAMAGED = "damaged: "
_NUMBERS = ("threads", "batch", "mode", "seconds", "complete", "error")
Count = Annotated[int, Field(ge=1)]
CountOrNone = Annotated[int, Field(ge=0)]
Milliseconds = Annotated[float, Field(gt=0)]
_record = dataclass(
    frozen=True, config=ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
)


class ProfileError(ValueError):
    """The profile cannot be used; the message says why and what to do."""


@_record
class Cell:
    """Measured latency of one instance on ``threads`` threads with batches of ``batch``."""

    threads: Count
    batch: Count
    ms: Milliseconds
    """Median; of a cell that ran in turns with others what agrees best with all of them."""
    low_ms: Milliseconds
    high_ms: Milliseconds
    """95 % interval of the median of a visit."""
    runs: Count
    outliers: CountOrNone = 0
    """Runs left out because something else held the processor, or of slower visits."""
    peak_bytes: CountOrNone = 0
    """Highest resident memory of the process so far."""
    visits: Count = 1
    """Times that it was measured; later ones in turns with a rival, whose ratio counts."""

    @model_validator(mode="after")
    def _is_an_interval(self) -> Self:
        if not self.low_ms <= self.ms <= self.high_ms:
            raise ValueError("the median lies in its interval")
        return self


@_record
class Undecided:
    """The choice for a batch size, and one that may be as good: the host was too noisy to tell."""

    batch: Count
    chosen: str
    rival: str
    apart: float = Field(ge=0)
    """How much slower the rival was, as a share."""
    noise: float = Field(ge=0)
    """How much slower it may seem by chance."""

    def __str__(self) -> str:
        """For people."""
        both = f"batch {self.batch}: {self.chosen} and {self.rival}"
        share = f"{self.apart:.0%} apart, noise {self.noise:.0%}"
        return f"{both} could not be told apart: {share}"


@_record
class SliceKind:
    """What each instance ran on: cores of a CPU, a GPU, or a MIG instance."""

    kind: Literal["cpu", "gpu"] = "cpu"
    profile: str = ""
    """Of the MIG instance, as ``3g.40gb``; empty: a whole GPU."""
    memory_gib: float = Field(0.0, ge=0)
    """Of the device."""

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if (self.memory_gib > 0) != (self.kind == "gpu"):
            raise ValueError(f"memory_gib {self.memory_gib:g}; allowed: above 0 for a gpu, else 0")
        if self.profile and self.kind == "cpu":
            raise ValueError(f"profile {self.profile!r}; allowed: none for a cpu")
        return self

    def __str__(self) -> str:
        """For people."""
        if self.kind == "cpu":
            return "CPU cores"
        return f"{self.profile or 'a whole GPU'} with {self.memory_gib:g} GiB"


@_record
class Provenance:
    """What was measured, and where; :meth:`differences` says when that is elsewhere."""

    model: str
    model_hash: str
    """SHA-256 of the archive's list of files."""
    cpu: str
    cores: Annotated[int, Field(ge=1, le=MAX_CORES)]
    """Physical cores this process may use."""
    torch: str
    sample_hash: str
    """SHA-256 of the request that was sent."""
    date: str = ""
    shunter: str = ""
    python: str = ""
    slice: SliceKind = SliceKind()

    def differences(self, other: Provenance) -> list[str]:
        """What makes a profile of ``self`` unusable for ``other``, in words."""
        names = {"model_hash": "model", "cpu": "processor", "cores": "cores", "torch": "torch"}
        slices = [f"{self.slice}, here {other.slice}"] if self.slice != other.slice else []
        return slices + [
            f"{word} {getattr(self, name)[:40]!r}, here {getattr(other, name)[:40]!r}"
            if isinstance(getattr(self, name), str)
            else f"{getattr(self, name)} {word}, here {getattr(other, name)}"
            for name, word in names.items()
            if getattr(self, name) != getattr(other, name)
        ]


@_record
class Profile:
    """Cells by ⟨threads, batch⟩, and where they come from."""

    provenance: Provenance
    threads: Annotated[int, Field(ge=1, le=MAX_THREADS)]
    """Most threads of an instance."""
    batch: Annotated[int, Field(ge=1, le=LARGEST_BATCH)]
    """Largest batch."""
    mode: str
    """``adaptive`` or ``exhaustive``."""
    cells: SkipValidation[Mapping[tuple[int, int], Cell]] = field(default_factory=dict)
    seconds: float = Field(0.0, ge=0)
    """Time spent measuring."""
    complete: bool = False
    failed: SkipValidation[Mapping[tuple[int, int], str]] = field(default_factory=dict)
    """Cells that could not be measured, and why; not kept on disk, so the next run tries again."""
    error: float | None = Field(None, ge=0)
    """How much slower than the best of an exhaustive profile a choice may be, as a share."""
    undecided: SkipValidation[tuple[Undecided, ...]] = ()
    """What repeating did not settle."""
    alone: bool = False
    """Whether one instance ran at a time, and not as many side by side as when they serve."""
    busy: float = Field(0.0, ge=0)
    """CPUs that something else used meanwhile; above ``BUSY`` the latencies are too high."""

    fbr: SkipValidation[Mapping[int, float]] = field(default_factory=dict)
    """By cores of a set, the share of the host's memory bandwidth that it wants there."""

    def bandwidth(self, cores: int) -> float | None:
        """FBR on so many cores, else on the next more that were measured; None: nobody knows."""
        wider = [each for each in self.fbr if each >= cores]
        return self.fbr[min(wider)] if wider else None

    @property
    def doubt(self) -> str:
        """Why its latencies are not to be acted on, in words; empty when they may be."""
        if self.busy <= BUSY:
            return ""
        busy = f"{self.busy:.1f} CPUs"
        return f"measured while something else used {busy}, so its latencies are too high"

    @property
    def way(self) -> str:
        """How it was measured, in words."""
        return f"{self.mode}, one instance at a time" if self.alone else self.mode

    @property
    def possible(self) -> int:
        """Cells of an exhaustive profile, and those measured up to an earlier largest batch."""
        sizes = batch_sizes(self.batch)
        return self.threads * len(sizes) + sum(b not in sizes for _, b in self.cells)

    def with_cells(self, cells: Iterable[Cell], seconds: float) -> Profile:
        """The profile with these cells, too, ``seconds`` later."""
        known = {**self.cells, **{(cell.threads, cell.batch): cell for cell in cells}}
        return replace(self, cells=known, seconds=self.seconds + seconds)

    def finished(self, error: float | None, undecided: tuple[Undecided, ...] = ()) -> Profile:
        """The profile when nothing more is to be measured."""
        return replace(self, complete=True, error=error, undecided=undecided)

    def check_usable(self, here: Provenance) -> None:
        """Raises ProfileError when it was measured of another model or on another machine."""
        if found := self.provenance.differences(here):
            raise ProfileError(
                f"the profile of {self.provenance.model} was measured with {'; '.join(found)}: "
                "run `shunter profile` again"
            )

    def to_json(self) -> str:
        """The file's text."""
        content = {
            "format": FORMAT,
            "version": VERSION,
            "provenance": asdict(self.provenance),
            **{name: getattr(self, name) for name in _NUMBERS},
            "alone": self.alone,
            "busy": self.busy,
            "fbr": {str(cores): share for cores, share in sorted(self.fbr.items())},
            "undecided": [asdict(each) for each in self.undecided],
            "cells": [asdict(self.cells[key]) for key in sorted(self.cells)],
        }
        return json.dumps(content, indent=1)


def read_profile(text: str | bytes) -> Profile:
    """Return the profile of a file's text. Raises ProfileError when it is not one."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProfileError(f"not JSON: {error}") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ProfileError("not a profile of Shunter")
    if content.get("version") != VERSION:
        raise ProfileError(
            f"version {content.get('version')}, this program knows {VERSION}: "
            "run `shunter profile` again"
        )
    try:
        cells = [checked(Cell, each, _place(each)) for each in content["cells"]]
        given = {name: content[name] for name in (*_NUMBERS, "alone", "busy") if name in content}
        given["cells"] = {(cell.threads, cell.batch): cell for cell in cells}
        told = [checked(Undecided, each, DAMAGED) for each in content.get("undecided", ())]
        given["undecided"] = tuple(told)
        given["fbr"] = {int(cores): float(s) for cores, s in content.get("fbr", {}).items()}
        provenance = {**content["provenance"]}
        provenance["slice"] = checked(SliceKind, provenance.get("slice", {}), DAMAGED + "slice ")
        given["provenance"] = checked(Provenance, provenance, DAMAGED)
    except ProfileError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ProfileError(f"damaged, or not complete: {error}") from None
    profile = checked(Profile, given, DAMAGED)
    if any(t > profile.threads or b > profile.batch for t, b in profile.cells):
        raise ProfileError("damaged: cells beyond the profile's own threads and batch")
    if not all(cores >= 1 and 0 <= share <= 1 for cores, share in profile.fbr.items()):
        raise ProfileError("damaged: fbr; allowed: shares from 0 to 1 by cores of a set")
    return profile


def checked(kind: type[Any], values: Mapping[str, Any], where: str = "") -> Any:
    """A record of values from outside. Raises ProfileError, which begins with ``where``."""
    try:
        return kind(**values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
    key = first["loc"][0] if first["loc"] else ""
    if key not in kind.__pydantic_fields__:
        said = f"{key} is unknown" if key else first["msg"].removeprefix("Value error, ")
    elif key not in values:
        said = f"{key} is missing"
    else:
        said = f"{key} {values[key]!r:.40}; allowed: {allowed(kind, key)}"
    raise ProfileError(f"{where}{said}")


def _place(cell: Mapping[str, Any]) -> str:
    return f"{DAMAGED}cell {cell['threads']}x{cell['batch']}: "


def batch_sizes(largest: int) -> list[int]:
    """Batch sizes that are measured: powers of two, and the largest."""
    sizes = [1 << k for k in range(largest.bit_length()) if 1 << k <= largest]
    return sizes if sizes[-1] == largest else [*sizes, largest]


def summary(profile: Profile) -> dict[str, Any]:
    """The profile in a few words, for people."""
    return {
        "cells": len(profile.cells),
        "of": profile.possible,
        "seconds": round(profile.seconds, 1),
        "complete": profile.complete,
        "error": profile.error,
        "busy": profile.busy,
    }
