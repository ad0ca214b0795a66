"""The ``tensors:`` of a model's ``shunter:`` section in its ``model-config.yaml``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shunter.batching.forming.spelling import hint
from shunter.batching.queue.packed import MOST_BYTES
from shunter.batching.queue.packed_form import PackedForm, must_be_packed
from shunter.batching.queue.tensor_spec import ANY, BYTES, TensorSpec, dtype_of
from shunter.handlers.device.torch_types import torch_type

_SIDES = ("inputs", "outputs")
_FORM = ("batched", "streamed", "request_bytes", "answer_bytes")
_BACKLOG = ("backlog_bytes", "backlog_ms", "stall_ms")
_KEYS = (*_SIDES, *_FORM, *_BACKLOG, "ragged", "buckets", "graphs")


class TensorConfigError(ValueError):
    """The ``tensors:`` of a model are wrong; the message says what is allowed."""


@dataclass(frozen=True)
class Padding:
    """How tensors of different sizes become a batch."""

    ragged: bool = False
    """They do not: the handler gets a list."""
    buckets: tuple[int, ...] = ()
    """Sizes to which a dimension is rounded up, ascending; what is larger stays as it is."""

    def size(self, largest: int) -> int:
        """Of a dimension whose largest size in the batch this is.

        >>> [Padding(buckets=(32, 64)).size(n) for n in (1, 32, 33, 70)]
        [32, 32, 64, 70]
        """
        return next((each for each in self.buckets if each >= largest), largest)


UNPADDED = Padding()
"""To the largest size of the batch."""


@dataclass(frozen=True)
class Backlog:
    """How far a client of a streamed answer may be behind."""

    bytes: int = 1 << 20
    """Of parts that are kept for it when others do not wait any more; with more its answer ends."""
    ms: int = 5000
    """So long others of its batch wait for it."""
    stall_ms: int = 30_000
    """So long requests of other batches wait for it, while none of its own could go on."""


USUAL_BACKLOG = Backlog()


@dataclass(frozen=True)
class TensorConfig:
    """What a model takes and gives."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    packing: PackedForm | None = None
    """None: all requests have as many bytes, and all answers."""
    padding: Padding = UNPADDED
    graphs: bool = True
    """Whether its kernels are captured, where it is on a device and not packed."""
    backlog: Backlog = USUAL_BACKLOG


def tensor_config(section: Mapping[str, Any]) -> TensorConfig:
    """Of a model's ``shunter:`` section. Raises TensorConfigError."""
    tensors = section.get("tensors")
    if not isinstance(tensors, Mapping) or not set(_SIDES) <= set(tensors):
        raise TensorConfigError("tensors: two lists, inputs and outputs")
    if unknown := sorted(map(str, set(tensors) - set(_KEYS))):
        raise TensorConfigError(
            f"tensors: {unknown[0]} is not known; allowed: {', '.join(sorted(_KEYS))}"
            f"{hint(unknown[0], _KEYS)}"
        )
    inputs, outputs = (_specs(side, tensors[side]) for side in _SIDES)
    given = {key: tensors[key] for key in _FORM if key in tensors}
    form = PackedForm(**given)
    try:
        form.check(inputs, outputs)
    except ValueError as error:
        raise TensorConfigError(f"tensors: {error}") from error
    backlog = _backlog(tensors, form)
    padding, graphs = _padding(tensors), tensors.get("graphs", True)
    if not isinstance(graphs, bool):
        raise TensorConfigError(f"tensors: graphs: {graphs!r}; allowed: true or false")
    if form.batched or form.streamed or must_be_packed(inputs, outputs):
        return TensorConfig(inputs, outputs, form, padding, graphs, backlog)
    more = [key for key in (*_FORM[2:], "ragged", "buckets") if key in tensors]
    if more:
        raise TensorConfigError(
            f"tensors: {more[0]}: all requests have the same size; it is for models of which a "
            f"dimension is {ANY}, a type is {BYTES}, or requests are batched or answers streamed"
        )
    return TensorConfig(inputs, outputs, graphs=graphs)


BODIES = tuple(TensorSpec(name, BYTES, ()) for name in ("body", "content_type", "headers"))
"""Inputs of a model whose requests are those of TorchServe; only the first must be there."""
ANSWER = (TensorSpec("answer", BYTES, ()),)


def is_of_bodies(section: Mapping[str, Any]) -> bool:
    """Whether a model declares no tensors: it works on bodies of requests, as TorchServe's do."""
    tensors = section.get("tensors", {})
    return isinstance(tensors, Mapping) and not set(_SIDES) & set(tensors)


def bodies_config(section: Mapping[str, Any]) -> TensorConfig:
    """What such a model takes and gives where there are only tensors. Its ``tensors:`` may say how
    long requests and answers are. Raises TensorConfigError."""
    given = dict(section.get("tensors", {}))
    if unknown := sorted(map(str, set(given) - set(_FORM[2:]))):
        raise TensorConfigError(
            f"tensors: {unknown[0]}: without inputs and outputs only {' and '.join(_FORM[2:])} "
            "are allowed"
        )
    form = PackedForm(**given, optional=len(BODIES) - 1)
    try:
        form.check(BODIES, ANSWER)
    except ValueError as error:
        raise TensorConfigError(f"tensors: {error}") from error
    return TensorConfig(BODIES, ANSWER, form)


def _padding(tensors: Mapping[str, Any]) -> Padding:
    ragged, buckets = tensors.get("ragged", False), tensors.get("buckets", [])
    if not isinstance(ragged, bool):
        raise TensorConfigError(f"tensors: ragged: {ragged!r}; allowed: true or false")
    is_right = isinstance(buckets, list) and all(type(n) is int and n > 0 for n in buckets)
    if not is_right or sorted(set(buckets)) != buckets:
        raise TensorConfigError(
            f"tensors: buckets: {buckets!r}; allowed: a list of sizes, each larger than the last"
        )
    if ragged and buckets:
        raise TensorConfigError("tensors: buckets: where tensors are ragged nothing is padded")
    return Padding(ragged, tuple(buckets))


def _backlog(tensors: Mapping[str, Any], form: PackedForm) -> Backlog:
    for key in _BACKLOG:
        value = tensors.get(key, 0)
        if type(value) is not int or not 0 <= value <= MOST_BYTES:
            allowed = f"0 to {MOST_BYTES}"
            raise TensorConfigError(f"tensors: {key}: {value!r}; allowed: {allowed}")
        if key in tensors and not form.streamed:
            raise TensorConfigError(f"tensors: {key}: it is for models with streamed: true")
    return Backlog(
        tensors.get("backlog_bytes", USUAL_BACKLOG.bytes),
        tensors.get("backlog_ms", USUAL_BACKLOG.ms),
        tensors.get("stall_ms", USUAL_BACKLOG.stall_ms),
    )


def _specs(kind: str, content: Any) -> tuple[TensorSpec, ...]:
    if not isinstance(content, list) or not content:
        raise TensorConfigError(f"tensors: {kind}: a list with at least one tensor")
    found = tuple(_spec(kind, each) for each in content)
    names = [spec.name for spec in found]
    if twice := [name for name in names if names.count(name) > 1]:
        raise TensorConfigError(f"tensors: {kind}: {twice[0]!r} is there twice")
    return found


def _spec(kind: str, content: Any) -> TensorSpec:
    try:
        if set(content) != {"name", "dtype", "shape"}:
            raise ValueError("keys")
        name, dtype, shape = (content[key] for key in ("name", "dtype", "shape"))
        if dtype != BYTES:
            torch_type(dtype)
            dtype = dtype_of(dtype).name
        spec = TensorSpec(str(name), dtype, tuple(int(n) for n in shape))
        spec.check()
    except (KeyError, TypeError, ValueError) as error:
        raise TensorConfigError(
            f"tensors: {kind}: {content!r}; allowed: name, dtype (a type of numpy and torch, such "
            f"as float32, bfloat16, float8_e4m3fn, float8_e5m2, or {BYTES}) and shape (a list of "
            f"sizes without the batch; {ANY}: each request chooses)"
        ) from error
    return spec
