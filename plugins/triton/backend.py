"""The backend inside the server, as its host speaks to it.

The messages are those of :mod:`shunter.plugins.triton.layout`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from shunter.batching.page.slices import words_of
from shunter.batching.queue.attach import Attach, AttachError
from shunter.batching.queue.landing import LandingPool
from shunter.batching.queue.layout import BLOCK, MAX_ENTRIES, MAX_TENSORS
from shunter.batching.queue.layout import digest as queue_digest
from shunter.batching.queue.size import entries_within
from shunter.batching.queue.tensor_queue import TensorQueue
from shunter.batching.queue.tensor_spec import BYTES, TensorSpec, dtype_of
from shunter.nic_frontend.library import path as library_path
from shunter.plugins.errors import UserError
from shunter.plugins.host import HostError
from shunter.plugins.triton import layout
from shunter.plugins.triton.layout import Kind, Said

TYPES = {
    name: number
    for number, name in enumerate(
        (
            *("", "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32"),
            *("int64", "float16", "float32", "float64", BYTES, "bfloat16"),
        )
    )
    if name
}
"""Numpy's name of a type and Triton's number of it."""
NAMES = {
    "bool": "BOOL",
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
    "bfloat16": "BF16",
    BYTES: "STRING",
}
"""Triton's names, where they are not numpy's in capitals."""
QUEUE_BYTES = 1 << 30
SPARE = 64
"""Blocks of the pool beyond those that full queues need."""
ANSWER_S = 10.0
_LARGEST = 1 << 16


class BackendGone(Exception):
    """It has ended, or does not answer in time: what it has done is not known."""


class NoBackend(BackendGone):
    """Nobody listens: the server has ended, or has not loaded the backend yet."""


def type_name(dtype: str) -> str:
    """As Triton calls a type of numpy."""
    return NAMES.get(dtype, dtype.upper())


class Backend:
    """A connection to it. Raises BackendGone when it is gone, AttachError for what it refuses."""

    def __init__(self, path: Path, answer_s: float = ANSWER_S) -> None:
        """Raises BackendGone, UserError when it is of another version."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(answer_s)
        try:
            self._socket.connect(str(path))
            digests = {"digest": layout.digest(), "queue_digest": queue_digest()}
            hello = layout.pack("hello", kind=Kind.HELLO, magic=layout.MAGIC, **digests)
            if self._ask(hello) != hello:
                raise UserError(
                    "the server has loaded libtriton_shunter.so of another version of shunter: "
                    "start it again"
                )
        except BaseException as error:
            self._socket.close()
            if isinstance(error, OSError):
                nobody = isinstance(error, FileNotFoundError | ConnectionRefusedError)
                kind = NoBackend if nobody else BackendGone
                raise kind(f"{path}: {error.strerror or error}") from error
            raise

    def close(self) -> None:
        """Hang up; what was handed over stays there."""
        self._socket.close()

    def __enter__(self) -> Backend:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fileno(self) -> int:
        """Readable when it is gone."""
        return self._socket.fileno()

    def _ask(self, message: bytes, descriptors: Sequence[int] = ()) -> bytes:
        with self._answering():
            socket.send_fds(self._socket, [message], list(descriptors))
            if data := self._socket.recv(_LARGEST):
                return data
            raise EOFError("it has hung up")

    @contextlib.contextmanager
    def _answering(self) -> Iterator[None]:
        """After a failure nothing more is read: it might be a late answer."""
        try:
            yield
        except (OSError, EOFError, struct.error) as error:
            self.close()
            raise BackendGone(f"the backend does not answer: {error}") from error

    def _reply(self, name: str, kind: Kind, descriptors: Sequence[int] = (), **values: Any) -> Any:
        data = self._ask(layout.pack(name, kind=kind, **values), descriptors)
        with self._answering():
            return layout.unpack("reply", data)

    # ---- what it is told

    def attach(self, attach: Attach, connection: socket.socket, free_bytes: float) -> int:
        """Hand a worker over, with its connection; its index.

        The backend answers it. Raises AttachError when it cannot be served.
        """
        which = {"model": attach.model, "version": int(attach.version or 1)}
        worker = {
            **which,
            "tensors_digest": tensors_digest(attach),
            "cap": attach.batch,
            "timeout_ns": int(attach.response_timeout_s * 1e9),
            "class": ("strict", "best_effort").index(attach.request_class.replace("-", "_")),
            "slo_ns": attach.slo_ns,
            "client_timeout_ns": attach.client_timeout_ns,
            "slot": attach.slot,
            "slices": words_of(attach.slices),
            "once": int(not attach.retry),
            "pool": attach.pool,
            "place": words_of(attach.place),
        }
        for _ in range(2):
            reply = self._reply("worker", Kind.WORKER, [connection.fileno()], **worker)
            if reply["said"] != Said.NO_FUNCTION:
                break
            self._bring_function(attach, which, free_bytes)
        if reply["said"] != Said.DONE:
            raise AttachError(_REASONS.get(reply["said"], "the backend refused it"))
        return int(reply["number"])

    def _bring_function(self, attach: Attach, which: Mapping[str, Any], free_bytes: float) -> None:
        """Make the memory of a function and hand it over."""
        inputs, outputs = attach.carried_inputs, attach.carried_outputs
        packed = attach.packing is not None
        each = 1 + (layout.STREAM_PLACES if packed and attach.packing.streamed else 0)
        batch = min(attach.batch * each, MAX_ENTRIES)
        entries = entries_within((*inputs, *outputs), batch, QUEUE_BYTES)
        pieces = max(1, sum(-(-spec.bytes // BLOCK) for spec in inputs))
        blocks = blocks_of(inputs, entries // each, packed=packed)
        queue = TensorQueue.create(
            1, inputs, outputs, entries, pieces, lambda: free_bytes, packed=packed
        )
        with queue, LandingPool(blocks * BLOCK, lambda: free_bytes) as pool:
            pool.grow(blocks)
            page, reader, *rings = queue.descriptors
            writer = os.open(f"/proc/self/fd/{reader}", os.O_RDWR | os.O_CLOEXEC)
            try:
                handed = [page, writer, reader, pool.descriptor, pool.reader, *rings]
                said = self._reply(
                    *("function", Kind.FUNCTION, handed),
                    **which,
                    **tensors_of(attach),
                    entries=entries,
                    pieces=pieces,
                    landing_bytes=blocks * BLOCK,
                    landing_blocks=blocks,
                    library=str(library_path().resolve()),
                )["said"]
            finally:
                os.close(writer)
        if said != Said.DONE:
            raise AttachError(_REASONS.get(said, "the backend refused its tensors"))

    def drain(self, model: str, version: int, pid: int) -> bool:
        """Give a worker nothing more, and dismiss it when it is idle; whether it is there."""
        reply = self._reply("drain", Kind.DRAIN, model=model, version=version, pid=pid)
        return bool(reply["said"] == Said.DONE)

    def expect(self, model: str, version: int) -> None:
        """A worker is being started, for which requests without one shall wait."""
        self._reply("expect", Kind.EXPECT, model=model, version=version)

    def set_policy(self, model: str, version: int, policy: Any, capacity: int = 0) -> None:
        """Decide by :class:`model_policy.Policy`; ``capacity``: so many may wait, 0: any number."""
        numbers = asdict(policy)
        numbers["cap"] = numbers.pop("threshold_cap")
        which = {"model": model, "version": version, "capacity": capacity}
        self._reply("policy", Kind.POLICY, **which, **numbers)

    def hold_on(self, page: int) -> None:
        """Strict requests hold on that control page from now on."""
        self._ask(layout.pack("page", kind=Kind.PAGE), [page])

    def functions(self) -> list[dict[str, Any]]:
        """``state`` of the layout of each; ``pids``: ns for which each runs its oldest batch."""
        count, found = self._reply("list", Kind.LIST)["number"], []
        for _ in range(count):
            with self._answering():
                state = layout.unpack("state", self._socket.recv(_LARGEST))
            workers = zip(state["pids"], state.pop("busy_ns"), strict=True)
            found.append(state | {"pids": {pid: busy for pid, busy in workers if pid}})
        return found


_REASONS = {
    int(Said.OTHER_TENSORS): "its tensors are not those of its peers",
    int(Said.NO_ROOM): "the model has as many workers as there can be",
    int(Said.WRONG): "the backend could not use its memory: the server's log says why",
    int(Said.NO_WORKER): "it has gone meanwhile",
}


def blocks_of(inputs: Sequence[TensorSpec], entries: int, *, packed: bool = False) -> int:
    """Blocks of the pool that hold the inputs of so many entries, however they lie.

    Whole blocks of each; the rests share blocks, each at least with those of its own size. Where
    they are packed they may be shorter, so that a rest may have a block for itself.
    """
    if packed and any(spec.bytes > BLOCK for spec in inputs):
        return entries * sum(-(-spec.bytes // BLOCK) for spec in inputs) + SPARE
    whole = sum(spec.bytes // BLOCK for spec in inputs)
    rests = [-(-(spec.bytes % BLOCK) // 64) * 64 for spec in inputs if spec.bytes % BLOCK]
    shared = -(-entries * len(rests) // (BLOCK // max(rests))) if rests else 0
    return entries * whole + shared + SPARE


def tensors_of(attach: Attach) -> dict[str, Any]:
    """The tensors of a worker as fields of a ``function``. Raises AttachError."""
    fields: dict[str, Any] = {"inputs": len(attach.inputs), "outputs": len(attach.outputs)}
    sides: list[TensorSpec | None] = []
    for side in (attach.inputs, attach.outputs):
        if not 1 <= len(side) <= MAX_TENSORS:
            raise AttachError(f"{len(side)} tensors; allowed: 1 to {MAX_TENSORS}")
        sides += [*side, *[None] * (MAX_TENSORS - len(side))]
    rows = [_tensor(each, packed=attach.packing is not None) for each in sides]
    fields["dtype"] = [row[0] for row in rows]
    fields["dims"] = [len(row[1]) for row in rows]
    fields["shape"] = [n for row in rows for n in (*row[1], *[0] * (8 - len(row[1])))]
    fields["bytes"] = [row[2] for row in rows]
    if attach.packing is not None:
        fields["packed"] = 1
        fields["batched"] = int(attach.packing.batched)
        fields["streamed"] = int(attach.packing.streamed)
        fields["request_bytes"] = attach.packing.request_bytes
        fields["answer_bytes"] = attach.packing.answer_bytes
        fields["optional"] = attach.packing.optional
    fields["names"] = b"".join(row[3].ljust(64, b"\0") for row in rows)
    fields["tensors_digest"] = tensors_digest(attach)
    return fields


def _tensor(spec: TensorSpec | None, *, packed: bool) -> tuple[int, tuple[int, ...], int, bytes]:
    if spec is None:
        return 0, (), 0, b""
    name = spec.name.encode()
    if spec.dtype not in TYPES or len(spec.shape) > layout.MOST_DIMS or len(name) > 63:
        raise AttachError(
            f"tensor {spec.name}: {spec.dtype} {spec.shape}; allowed: {', '.join(TYPES)}, up to "
            f"{layout.MOST_DIMS} dimensions, names of up to 63 bytes"
        )
    item = 0 if spec.dtype == BYTES else dtype_of(spec.dtype).itemsize
    return TYPES[spec.dtype], spec.shape, item if packed else spec.bytes, name


def tensors_digest(attach: Attach) -> int:
    """The same for workers with the same tensors."""
    text = repr((attach.inputs, attach.outputs, attach.packing))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def status_of(backend_at: Path) -> dict[str, Any]:
    """What a backend serves that another process started. Raises HostError."""
    try:
        with Backend(backend_at) as backend:
            found = backend.functions()
    except BackendGone as error:
        raise HostError(f"no Triton with shunter's backend listens there: {error}") from error
    models = [{"name": each.pop("model"), **each, "ready": len(each["pids"])} for each in found]
    return {"server": "Triton", "models": models}
