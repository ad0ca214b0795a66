"""``shunter profile --triton``: an existing model, measured in the Triton that serves it.

A batch is one request of as many rows, sent by Triton's own client. As many requests run side by
side as there are instances; the model's page keeps Triton from making one batch of two.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from shunter.allocator.cpus.topology import Topology
from shunter.allocator.planning.profile import Profile, ProfileError, Provenance
from shunter.handlers.sample import Sample
from shunter.plugins.errors import UserError
from shunter.plugins.host import WorkerFailed
from shunter.plugins.profiling import profiler
from shunter.plugins.profiling.concurrent_workers import NotTogether
from shunter.plugins.profiling.profiles import cpu_model
from shunter.plugins.triton.existing.page import StrategyPage
from shunter.plugins.triton.existing.server import (
    THREADS_PARAMETER,
    ServedModel,
    group_of,
    page_of,
    threads_of,
)

ANSWER_S = 600.0
WITHOUT = ("instance_group", "version_policy")
"""Keys of a configuration that change nothing about the time of a batch."""


class RemoteWorker:
    """One instance, as :class:`shunter.plugins.host.ModelWorker` has it: a client that waits."""

    peak_bytes = 0
    """Not known: the instances are Triton's."""
    pid = 0
    is_dead = False

    def __init__(self, ask: Callable[[int], None], before: Callable[[int], None]) -> None:
        """``ask`` sends a request of so many rows; ``before`` is called with them first."""
        self._ask, self._before = ask, before

    def start(self) -> Self:
        """It is Triton's."""
        return self

    def run(self, samples: Sequence[Sample]) -> float:
        """See the protocol."""
        self._before(len(samples))
        begin = time.perf_counter()
        self._ask(len(samples))
        return time.perf_counter() - begin

    def kill(self) -> None:
        """It is Triton's."""

    def close(self) -> None:
        """It is Triton's."""


class RemoteWorkers:
    """The :class:`shunter.plugins.profiling.profiler.Workers` of an existing model."""

    def __init__(
        self, model: ServedModel, page: StrategyPage, request: Request, cores: int, *, alone: bool
    ) -> None:
        """``cores``: on which instances run side by side."""
        self._model, self._page, self._request = model, page, request
        self._cores, self._alone = cores, alone
        config = model.config()
        self._before = int(group_of(config)["count"]), threads_of(config)
        self._now = self._before
        self._cap, self._capping = 0, threading.Lock()

    def of(self, *threads: int) -> list[list[RemoteWorker]]:
        """See the protocol."""
        each, *others = dict.fromkeys(threads)
        if others:
            raise NotTogether
        count = 1 if self._alone else max(1, self._cores // each)
        self._change(count, each if self._before[1] else 0)
        workers = [RemoteWorker(self._request.ask, self._limit) for _ in range(count)]
        return [workers] * len(threads)

    def _limit(self, rows: int) -> None:
        with self._capping:
            self._page.write(cap=rows)

    def _change(self, count: int, threads: int) -> None:
        if (count, threads) != self._now:
            self._model.change(count, threads if threads != self._now[1] else 0)
            self._now = count, threads

    def close(self) -> None:
        """As it was before."""
        self._change(*self._before)


class Request:
    """Requests of any number of rows, made of one of one row."""

    def __init__(self, name: str, grpc: str, inputs: Mapping[str, tuple[str, np.ndarray]]) -> None:
        """``inputs``: by name, type and one row. Raises UserError."""
        try:
            import tritonclient.grpc as client
        except ImportError as error:
            raise UserError(
                "profiling needs Triton's client: pip install 'shunter[triton]'"
            ) from error
        self._name, self._inputs, self._made = name, inputs, {}
        self._package = client
        self._client = client.InferenceServerClient(grpc)

    def ask(self, rows: int) -> None:
        """Send one and wait for its answer. Raises WorkerFailed."""
        try:
            self._client.infer(self._name, self._of(rows), client_timeout=ANSWER_S)
        except self._package.InferenceServerException as error:
            raise WorkerFailed(f"{self._name}: {error}") from error

    def _of(self, rows: int) -> list[Any]:
        if rows not in self._made:
            made = []
            for name, (kind, row) in self._inputs.items():
                values = np.repeat(row, rows, axis=0)
                each = self._package.InferInput(name, list(values.shape), kind)
                each.set_data_from_numpy(values)
                made.append(each)
            self._made[rows] = made
        return self._made[rows]

    def close(self) -> None:
        """Ask no more."""
        self._client.close()


def read_inputs(config: Mapping[str, Any], body: bytes | None) -> dict[str, tuple[str, np.ndarray]]:
    """One row of each input: of a request's JSON as Triton takes it, else zeros of the shape.

    Raises UserError: a size is not known, or the request is none.
    """
    from tritonclient.utils import triton_to_np_dtype

    if body is not None:
        try:
            found = {
                each["name"]: (
                    each["datatype"],
                    np.array(
                        [x.encode() if isinstance(x, str) else x for x in np.ravel(each["data"])],
                        dtype=triton_to_np_dtype(each["datatype"]),
                    ).reshape(each["shape"])[:1],
                )
                for each in json.loads(body)["inputs"]
            }
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"--input: not the JSON of a request to Triton: {error}") from error
        return found
    found = {}
    for each in config.get("input", ()):
        kind = each["data_type"].removeprefix("TYPE_").replace("STRING", "BYTES")
        dims = [int(dim) for dim in each["dims"]]
        if min(dims, default=1) < 1 or kind == "BYTES":
            raise UserError(
                f"the input {each['name']} has no one shape: give a request with --input FILE.json"
            )
        found[each["name"]] = (kind, np.zeros([1, *dims], dtype=triton_to_np_dtype(kind)))
    return found


def provenance(
    model: ServedModel, config: Mapping[str, Any], sample: str, cores: int
) -> Provenance:
    """What is measured, and where. Triton is taken to run on this host."""
    known = {key: value for key, value in config.items() if key not in WITHOUT}
    known["parameters"] = {
        key: value
        for key, value in config.get("parameters", {}).items()
        if key != THREADS_PARAMETER
    }
    text = json.dumps(known, sort_keys=True)
    return Provenance(
        model=model.name,
        model_hash=hashlib.sha256(text.encode()).hexdigest(),
        cpu=cpu_model(),
        cores=cores,
        torch=f"Triton {model.server_version()}",
        sample_hash=sample,
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )


def run(
    model: ServedModel,
    task: profiler.Task,
    path: Path,
    topology: Topology,
    report: Callable[[profiler.Progress], None],
) -> Profile:
    """Measure a served model; its instances are as before afterwards. Raises UserError."""
    config = model.config()
    if not threads_of(config) and task.threads > 1:
        raise UserError(
            f"{model.name} takes no number of threads (it has no parameter {THREADS_PARAMETER}): "
            "leave --threads away, or say --threads 1"
        )
    group_of(config)
    inputs = read_inputs(config, task.samples[0].body if task.samples else None)
    with contextlib.ExitStack() as stack:
        page = stack.enter_context(StrategyPage(Path(page_of(config))))
        request = Request(model.name, model.grpc, inputs)
        stack.callback(request.close)
        workers = RemoteWorkers(model, page, request, topology.cores, alone=task.alone)
        stack.callback(workers.close)
        samples = task.samples or [Sample(b"")]
        here = provenance(model, config, profiler.hash_of(samples), topology.cores)
        try:
            profile = profiler.begin(task, path, here)
            return profiler.measure_all(task, path, profile, samples, workers, report)
        except (WorkerFailed, ProfileError, OSError) as error:
            raise UserError(str(error)) from error
