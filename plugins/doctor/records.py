"""What is known of a machine. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


class Built(Enum):
    """The state of something that is compiled."""

    FRESH = "as its sources"
    STALE = "older than its sources"
    MISSING = "missing"


@dataclass(frozen=True)
class Software:
    """Programs and packages."""

    machine: str
    """Processor, as ``uname -m`` says."""
    system: str
    kernel: tuple[int, int]
    python: tuple[int, int]
    java: int | None
    """Feature version; None: no Java that runs."""
    java_program: str
    torchserve: str | None
    torch: str | None
    triton: str | None
    """Its program."""
    compiled: Mapping[str, Built]
    """The jar, the C library, the program of pools, Triton's backend: by name."""
    javac: bool
    compiler: bool


@dataclass(frozen=True)
class Host:
    """What programs find here."""

    cpus: int
    nodes: int
    quota: float
    """CPUs' worth of time of the cgroup; inf: no limit."""
    memory: float
    """Bytes that would still be given; inf: nothing tells."""
    runtime: str
    """Where servers keep their pages, and queues their memory."""
    runtime_free: int | None
    """Bytes; None: there is no such folder."""
    runtime_writable: bool
    servers: int
    """Running ones of this user."""
    taken: tuple[int, ...]
    """Of the usual ports."""
    open_files: tuple[int, int]
    """Soft and hard limit."""
    receive_bytes: int | None
    """Most of a socket's receive buffer; None: nothing tells."""
    may_force: bool
    """Whether this process may have more than that."""
    returns_from_idle: bool
    """Whether a thread may leave SCHED_IDLE again."""
    clock: str
    """Empty: nothing tells."""


@dataclass(frozen=True)
class Gpus:
    """NVIDIA GPUs."""

    names: tuple[str, ...]
    problem: str
    """Why NVML does not tell, with advice; empty: it does."""
    device_files: bool
    """Whether the kernel shows a GPU here."""
    mps: bool
    """Whether the control program of MPS is there."""


@dataclass(frozen=True)
class Facts:
    """All of it."""

    software: Software
    host: Host
    gpus: Gpus
    settings: str | None
    settings_problem: str
    """Why the file cannot be used; empty: it can, or there is none."""
