"""Where this worker runs: cores, threads and scheduling class, from its environment.

The JVM sets these per worker, and a model may (``shunter: {environment: {…}}``):

``SHUNTER_CORES``
    CPUs as a Linux cpu list, such as ``0-3,8``; or ``auto``: as many free ones as it has threads,
    on one NUMA node (:mod:`shunter.allocator.cpus.claims`).
``SHUNTER_THREADS``
    Threads one operator may use, a positive integer.
``SHUNTER_SCHED``
    ``idle`` for a best-effort worker that must only take what others leave (``SCHED_IDLE``); its
    OpenMP threads then spin for a short time only, unless ``OMP_WAIT_POLICY`` or
    ``GOMP_SPINCOUNT`` say something else; ``other`` for the usual class.
``SHUNTER_IDLE_CGROUP``
    A folder of the cgroup file system that an ``idle`` worker moves itself to. The kernel compares
    scheduling classes inside of a cgroup only, so this makes it step back for other services of
    the host too, if the group says ``cpu.idle`` or has a small weight.
``SHUNTER_SHARE_WITH``
    Pids, separated by commas, of the workers that this one will replace; with ``auto`` it may have
    the same CPUs as they.
``SHUNTER_GENTLE``
    ``1``: until the model is loaded, disturb those who serve as little as possible; ``early``: it
    was started with a small share for that.
``SHUNTER_PATIENCE_S``
    After so many seconds behind everyone else, by ``SHUNTER_GENTLE`` or ``SHUNTER_SCHED``, a load
    that had less takes a small share, after four times as many it is an ordinary one until it ends:
    15, but no more than an eighth of ``SHUNTER_STARTUP_TIMEOUT_S``, which is all that it may take.

An absent or empty variable leaves that part as it is. A place is taken before torch is imported,
because OpenMP and MKL read their variables once and start threads that inherit the affinity and
the scheduling class. A GPU or a slice of one comes by ``CUDA_VISIBLE_DEVICES``.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Collection, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from shunter.allocator.cpus.claims import CoreClaims, claims_path
from shunter.allocator.cpus.cpu_list import MAX_CPU, CpuListError, format_cpu_list, parse_cpu_list
from shunter.allocator.cpus.discovery import read_topology
from shunter.handlers.placement import gentle as loading
from shunter.handlers.placement.partners import BINDING_VARIABLES, keep_apart

CORES_VARIABLE = "SHUNTER_CORES"
THREADS_VARIABLE = "SHUNTER_THREADS"
SCHED_VARIABLE = "SHUNTER_SCHED"
PREEMPTIBLE_VARIABLE = "SHUNTER_PREEMPTIBLE"
"""``1``: the server wants it to give way; then idle scheduling is a wish, not a condition."""
CGROUP_VARIABLE = "SHUNTER_IDLE_CGROUP"
SHARE_VARIABLE = "SHUNTER_SHARE_WITH"
PATIENCE_VARIABLE, STARTUP_VARIABLE = "SHUNTER_PATIENCE_S", "SHUNTER_STARTUP_TIMEOUT_S"
AUTO = "auto"

# Every numeric library of a worker must agree, or one of them starts a thread per core.
LIBRARY_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)

SPIN_VARIABLE = "GOMP_SPINCOUNT"
SPINS = "10000"
"""About 0.1 ms: enough for a model that runs alone, and short where several want the same cores."""
MAX_THREADS = MAX_CPU + 1
_SCHEDULING = ("idle", "other")


class PlacementError(ValueError):
    """The placement asked for is malformed, or this machine cannot give it."""


@dataclass(frozen=True)
class Placement:
    """Where one worker runs; ``None`` leaves that part as it is."""

    cores: tuple[int, ...] | None = None
    """CPU numbers, ascending."""
    choose: bool = False
    """Whether it chooses its cores itself."""
    threads: int | None = None
    """Threads of one operator."""
    scheduling: str | None = None
    """``idle`` or ``other``."""
    share_with: tuple[int, ...] = ()
    """Pids of the workers it replaces."""
    gentle: bool = False
    """Whether it loads its model behind everyone else."""
    patience_s: float = loading.PATIENCE_S
    """How long it does so at most."""


def read_placement(environ: Mapping[str, str]) -> Placement:
    """Return the placement that ``environ`` asks for."""
    cores = environ.get(CORES_VARIABLE)
    threads = environ.get(THREADS_VARIABLE)
    scheduling = environ.get(SCHED_VARIABLE)
    if scheduling and scheduling not in _SCHEDULING:
        raise PlacementError(
            f"{SCHED_VARIABLE}={scheduling!r}: allowed are {' and '.join(_SCHEDULING)}"
        )
    choose = cores == AUTO
    placement = Placement(
        cores=_read_cores(cores) if cores and not choose else None,
        choose=choose,
        threads=_read_threads(threads),
        scheduling=scheduling or None,
        share_with=_read_pids(environ.get(SHARE_VARIABLE)),
        gentle=environ.get(loading.GENTLE_VARIABLE) in ("1", loading.EARLY),
        patience_s=_read_patience(environ),
    )
    if choose and placement.threads is None:
        raise PlacementError(f"{CORES_VARIABLE}={AUTO} needs {THREADS_VARIABLE}")
    return placement


def _read_cores(text: str) -> tuple[int, ...]:
    try:
        return parse_cpu_list(text)
    except CpuListError as error:
        raise PlacementError(f"{CORES_VARIABLE}: {error}") from None


def _read_threads(text: str | None) -> int | None:
    if not text:
        return None
    known = text.isascii() and text.isdigit() and len(text) <= len(str(MAX_THREADS))
    if not known or not 1 <= int(text) <= MAX_THREADS:
        raise PlacementError(
            f"{THREADS_VARIABLE}={text!r}: must be a whole number from 1 to {MAX_THREADS}"
        )
    return int(text)


def _read_patience(environ: Mapping[str, str]) -> float:
    usual = loading.usual_patience_s(_read_seconds(environ, STARTUP_VARIABLE, math.inf))
    return _read_seconds(environ, PATIENCE_VARIABLE, usual)


def _read_seconds(environ: Mapping[str, str], name: str, usual: float) -> float:
    text = environ.get(name)
    if text and not re.fullmatch(r"\d{1,10}(\.\d{1,3})?", text, re.ASCII):
        raise PlacementError(f"{name}={text!r}: must be a number of seconds")
    return float(text) if text else usual


def _read_pids(text: str | None) -> tuple[int, ...]:
    if not text:
        return ()
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        raise PlacementError(f"{SHARE_VARIABLE}={text!r}: must be pids separated by commas")
    return tuple(int(part) for part in parts)


class Place:
    """Where this process runs: taken before torch is imported, settled when the model is loaded."""

    def __init__(self, placement: Placement, environ: MutableMapping[str, str]) -> None:
        """Move this process there."""
        self._placement = placement
        self._claims: CoreClaims | None = None
        self._lacks_cores = False
        self._end_gentle: Callable[[], None] | None = None
        if placement.threads is not None:
            for name in LIBRARY_VARIABLES:
                environ[name] = str(placement.threads)
        near = os.sched_getaffinity(0)
        cores = self._choose(environ) if placement.choose else self._keep(environ)
        if cores is not None:
            near &= _same_node(cores)
            _pin(cores)
        loading.end_early(environ)
        if placement.scheduling == "idle":
            # By default they spin for milliseconds, on cores that other best effort could use.
            if not environ.get("OMP_WAIT_POLICY"):
                environ.setdefault(SPIN_VARIABLE, SPINS)
            must = environ.get(PREEMPTIBLE_VARIABLE) != "1"
            self._end_gentle = loading.begin_idle(
                lambda: _yield_to_others(must=must), placement.patience_s
            )
            if group := environ.get(CGROUP_VARIABLE):
                _join(Path(group))
        elif placement.gentle and loading.can_return_from_idle():
            mine = os.sched_getaffinity(0)
            # A library that binds its threads does so to the CPUs that it finds at its start.
            binds = any(environ.get(name) for name in BINDING_VARIABLES)
            self._end_gentle = loading.begin(mine, mine if binds else near, placement.patience_s)

    def settle(self) -> None:
        """The model is loaded: take the whole place, at the usual priority or at that of idle."""
        if self._end_gentle is not None:
            self._end_gentle()
            self._end_gentle = None
        if self._lacks_cores:
            self._claim_late()
        if not self._lacks_cores:
            keep_apart(self._placement.threads, self._claims, os.environ)

    def _claim_late(self) -> None:
        why = f"no NUMA node has {self._placement.threads} CPUs that no other worker holds"
        try:
            cores = self._claim()
        except OSError as error:
            cores, why = None, str(error)
        self._lacks_cores = cores is None
        if cores is None:
            what = "is not pinned" if self._placement.choose else "may have to share its CPUs"
            print(f"Model worker {what}: {why}", flush=True)
        elif self._placement.choose:
            # They can be had only now: who had them was ending, or somebody was choosing for long.
            loading.move_threads(os.sched_getaffinity(0), cores)

    def _keep(self, environ: Mapping[str, str]) -> tuple[int, ...] | None:
        """The CPUs that were given; workers that choose theirs shall know."""
        cores = self._placement.cores
        if cores is not None:
            try:
                self._claims = CoreClaims(claims_path(environ, os.geteuid()))
                self._claim()
            except OSError as error:
                self._lacks_cores = isinstance(error, TimeoutError)  # perhaps after the load
        return cores

    def _choose(self, environ: Mapping[str, str]) -> tuple[int, ...] | None:
        """CPUs of its own for as long as this process lives; None when there are not enough."""
        topology = read_topology()
        if topology.limited:
            print(
                f"Model worker is not pinned: a quota of {topology.quota:g} CPUs on "
                f"{len(topology.cpus)} says that they are shared with others",
                flush=True,
            )
            return None
        try:
            self._claims = CoreClaims(claims_path(environ, os.geteuid()))
            cores = self._claim()
        except TimeoutError:  # whoever was choosing may be done, or gone, after the load
            cores = None
        except OSError as error:
            print(f"Model worker is not pinned: {error}", flush=True)
            return None
        self._lacks_cores = cores is None
        return cores

    def _claim(self) -> tuple[int, ...] | None:
        assert self._claims is not None
        given, threads = self._placement.cores, self._placement.threads or 1
        if given is not None:
            self._claims.hold(given)
            return given
        return self._claims.claim(read_topology(), threads, self._placement.share_with)


def _same_node(cores: Collection[int]) -> set[int]:
    """All CPUs of the NUMA nodes of ``cores``: memory that is touched there stays near."""
    cpus = read_topology().cpus
    nodes = {cpu.node for cpu in cpus if cpu.id in cores}
    return {cpu.id for cpu in cpus if cpu.node in nodes} | set(cores)


def _pin(cores: tuple[int, ...]) -> None:
    wanted = format_cpu_list(cores)
    try:
        os.sched_setaffinity(0, cores)
    except OSError:
        granted: set[int] = set()
    else:
        # The kernel drops what a cpuset forbids without a word, so look at what was granted.
        granted = os.sched_getaffinity(0)
    missing = set(cores) - granted
    if missing:
        raise PlacementError(
            f"{CORES_VARIABLE}={wanted}: CPU {format_cpu_list(missing)} is not available to this "
            f"process, which may use {format_cpu_list(os.sched_getaffinity(0))}"
        )


def _yield_to_others(*, must: bool) -> None:
    try:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    except OSError as error:
        text = f"{SCHED_VARIABLE}=idle: the kernel refused it: {error}"
        if must:
            raise PlacementError(text) from error
        # A sandbox may forbid it. It still stands still for strict requests between segments.
        print(f"Model worker does not step back for others: {text}", flush=True)


def _join(group: Path) -> None:
    """Move this process, and what it will start, to a cgroup; that it is idle is its owner's."""
    try:
        (group / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")
    except OSError as error:
        raise PlacementError(f"{CGROUP_VARIABLE}={group}: {error}") from error
