"""Types of the keys of ``shunter.toml``, with what the error for a bad value says is allowed."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, Strict
from pydantic.dataclasses import dataclass

from shunter.allocator.planning.allowed import number_in_words
from shunter.batching.page.layout import CLASSES, GROUP_COUNT

MAX_WAIT_MS = 3_600_000
Entry = TypeVar("Entry")
section = dataclass(
    frozen=True,
    slots=True,
    config=ConfigDict(extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True),
)


def number(default: Any, low: float, high: float) -> Any:
    """A number from ``low`` to ``high``."""
    return Field(default, ge=low, le=high, strict=True)


def zero_or(low: float, high: float) -> Any:
    """The type of 0, or of a number from ``low`` to ``high``."""

    def check(value: float) -> float:
        if value and not low <= value <= high:
            raise ValueError(value)
        return value

    said = {"allowed": f"0 or {number_in_words({'ge': low, 'le': high})}"}
    return Annotated[float, AfterValidator(check), Field(strict=True, json_schema_extra=said)]


def text(default: str | None, meaning: str) -> Any:
    """A text that is not empty."""
    said = {"allowed": meaning}
    return Field(default, pattern=r"^[^\x00]+$", strict=True, json_schema_extra=said)


def lists(default: Any, meaning: str, *, table: bool = False) -> Any:
    """A list with one entry per worker group, or a table of a list per request class."""
    said = f"a list of at most {GROUP_COUNT} entries, each {meaning}"
    if table:
        said = f"a table with the keys {', '.join(CLASSES)}: {said.removeprefix('a ')}"
    return Field(default, json_schema_extra={"allowed": said})


def classes(value: Any) -> Any:
    """A table of a list per class as a list for every class, in order."""
    if not isinstance(value, dict):
        return value
    if not value.keys() <= set(CLASSES):
        raise ValueError(value)
    return tuple(value.get(name, ()) for name in CLASSES)


Switch = Annotated[bool, Strict()]
Name = Annotated[str, Field(min_length=1, strict=True)]
Cap = Annotated[int, Field(ge=0, le=1 << 20, strict=True)]
Share = Annotated[float, Field(ge=0, le=1, strict=True)]
Rank = Annotated[int, Field(ge=0, le=1000, strict=True)]
Groups = Annotated[tuple[Entry, ...], Field(max_length=GROUP_COUNT)]
ByClass = Annotated[tuple[Groups[Entry], Groups[Entry]], BeforeValidator(classes)]


@section
class PoolSettings:
    """Processes in which several models have their workers: ``[pool]``.

    Read when a server starts.
    """

    models: Literal["dedicated", "shared"] = "dedicated"
    """``shared``: all models share them that say nothing of where they run; else those that say
    ``pool: shared``."""
    workers: int = number(1, 1, 64)
    """Such processes. A model has a worker in each of them."""
    hot_mb: int = number(0, 0, 1 << 20)
    """Memory of each for weights that are in use, of its GPU where it has one; 0: its share of a
    half of what is free."""
    threads: int = number(0, 0, 1024)
    """Of an operator in each of them; 0: its share of the CPUs."""
    cores: str | None = Field(
        None,
        pattern=r"^(auto|[0-9]{1,4}(-[0-9]{1,4})?(,[0-9]{1,4}(-[0-9]{1,4})?)*)$",
        strict=True,
        json_schema_extra={"allowed": '"auto" or a CPU list such as "0-3,8"'},
    )
    """CPUs that are divided among them; ``auto``: each chooses as many as it has threads and keeps
    them; absent: they run everywhere."""
