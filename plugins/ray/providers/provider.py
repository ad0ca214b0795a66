"""What is asked of whoever has machines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from shunter.allocator.cluster.procurement import Kind


class ProviderError(Exception):
    """What was asked cannot be done, and asking again does not help: one sentence with advice.

    That there is no machine to be had just now is none: ``acquire`` returns fewer then.
    """


@dataclass(frozen=True)
class Listed:
    """A machine that is paid for."""

    name: str
    kind: Kind
    is_draining: bool = False
    """``drain`` was called for it, by this process or one before."""
    address: str = ""
    """Where the others reach it, once that is known."""


class Provider(Protocol):
    """All of it may be called again after any failure. Times are seconds since the epoch.

    What machines there are is known to the provider alone, and to no file of ours: a controller
    that starts anew goes on where the last one was killed.
    """

    def machines(self) -> Sequence[Listed]:
        """All that start or run and belong to this cluster. Raises ProviderError."""
        ...

    def notices(self) -> Mapping[str, float]:
        """When machines will be taken away, as far as that was announced. Raises ProviderError."""
        ...

    def acquire(self, kind: Kind, count: int) -> Sequence[str]:
        """Ask for so many; names of those that were granted. Raises ProviderError."""
        ...

    def drain(self, name: str) -> None:
        """Keep in mind that it gets nothing more. Raises ProviderError."""
        ...

    def release(self, names: Iterable[str]) -> None:
        """Give them back; no error for one that is gone. Raises ProviderError."""
        ...
