"""The front end's client in the shape of ``tritonclient``: for code that was written for Triton.

    from shunter.nic_frontend.tritonlike import InferenceServerClient, InferInput

A tensor of Triton has the batch in front; a request of ours is one element of it. A shape of
``[n, ...]`` is therefore ``n`` requests, sent together and answered as one array; the server
batches them again as it sees fit. A shape without the batch is one request.

Sequences, BYTES tensors and class counts are refused. ``timeout`` (µs) is the server's deadline,
``client_timeout`` (s) the client's patience; a ``priority`` of 1 is strict, one
above 1 best effort.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np

from shunter.batching.tensor_spec import TensorSpec
from shunter.nic_frontend.calls import Array, Options
from shunter.nic_frontend.client import (
    AuthenticationError,
    BadRequestError,
    Client,
    InferenceError,
    Session,
    TooLateError,
    UnreachableError,
)
from shunter.nic_frontend.connecting import Key
from shunter.nic_frontend.shared_regions import RegionError, Regions
from shunter.nic_frontend.triton_tensors import (
    InferenceServerException,
    InferInput,
    InferRequestedOutput,
    InferResult,
    triton_type,
)

__all__ = [
    "InferInput",
    "InferRequestedOutput",
    "InferResult",
    "InferenceServerClient",
    "InferenceServerException",
]
LIVE_S = 1.0
"""A server that says nothing for so long is not live."""
_STATUS: tuple[tuple[type[Exception], str], ...] = (
    (BadRequestError, "StatusCode.INVALID_ARGUMENT"),
    (RegionError, "StatusCode.INVALID_ARGUMENT"),
    (TooLateError, "StatusCode.DEADLINE_EXCEEDED"),
    (UnreachableError, "StatusCode.UNAVAILABLE"),
    (AuthenticationError, "StatusCode.UNAUTHENTICATED"),
    (InferenceError, "StatusCode.INTERNAL"),
)


def _as_triton(error: Exception) -> InferenceServerException:
    status = next(status for kind, status in _STATUS if isinstance(error, kind))
    return InferenceServerException(str(error), status, error)


class InferenceServerClient:
    """A client of all models of a front end, for several threads."""

    def __init__(
        self,
        url: str,
        verbose: bool = False,
        *,
        key: Key | None = None,
        encrypt: bool = False,
        network_timeout: float = 60.0,
        ssl: bool = False,
        **_: Any,
    ) -> None:
        """``url`` as of Client; without a scheme it is ``udp://``. ``network_timeout``: seconds.

        What else Triton's clients take, such as ``concurrency``, has no meaning here. Raises
        InferenceServerException for ``ssl``: nobody shall take plain text for encrypted.
        """
        if ssl:
            text = "there is no TLS; key= names the pre-shared key, encrypt=True encrypts tensors"
            raise _as_triton(BadRequestError(text))
        url = url if "://" in url else f"udp://{url}"
        self._verbose = verbose
        self._client = Client(url, key=key, encrypt=encrypt, timeout_s=network_timeout)
        self._regions = Regions()

    # ---- requests

    def infer(
        self,
        model_name: str,
        inputs: Sequence[InferInput],
        model_version: str = "",
        outputs: Sequence[InferRequestedOutput] | None = None,
        request_id: str = "",
        sequence_id: int = 0,
        sequence_start: bool = False,
        sequence_end: bool = False,
        priority: int = 0,
        timeout: int | None = None,
        client_timeout: float | None = None,
        headers: Mapping[str, str] | None = None,
        **_: Any,
    ) -> InferResult:
        """Ask once, or once for each element of the batch. Raises InferenceServerException."""
        if sequence_id or sequence_start or sequence_end:
            raise _as_triton(BadRequestError("sequences are not served"))
        begun = time.perf_counter()
        options = Options(
            deadline_ms=timeout / 1000 if timeout else None,
            best_effort=priority > 1 if priority else None,
            timeout_s=client_timeout,
        )
        try:
            session = self._client.model(model_name, model_version)
            found = self._infer(session, inputs, outputs, options)
        except (InferenceError, RegionError) as error:
            raise _as_triton(error) from error
        if self._verbose:
            print(f"{model_name}: {1000 * (time.perf_counter() - begun):.3f} ms")
        return InferResult(model_name, model_version, request_id, found, outputs)

    def _infer(
        self,
        session: Session,
        inputs: Sequence[InferInput],
        outputs: Sequence[InferRequestedOutput] | None,
        options: Options,
    ) -> dict[str, Array]:
        arrays = _in_order(session.inputs, {each.name(): each for each in inputs}, self._regions)
        count = _batch_of(session.inputs, arrays)
        asked = {each.name(): each for each in outputs or ()}
        if unknown := asked.keys() - {spec.name for spec in session.outputs}:
            raise BadRequestError(f"the model has no output {', '.join(sorted(unknown))}")
        batch = () if count is None else (count,)
        found = {
            spec.name: _output(spec, batch, asked.get(spec.name), self._regions)
            for spec in session.outputs
        }
        if count is None:
            session.infer(arrays, options, out=list(found.values()))
        else:
            requests = [[array[i, ...] for array in arrays] for i in range(count)]
            places = [[array[i, ...] for array in found.values()] for i in range(count)]
            session.infer_many(requests, options, out=places)
        return found if outputs is None else {name: found[name] for name in asked}

    # ---- the server

    def is_server_live(self, **_: Any) -> bool:
        """Whether something answers."""
        settings = {**self._client.settings, "timeout_s": LIVE_S}
        try:
            Session(self._client.url, "", **settings).close()
        except UnreachableError:
            return False
        except InferenceError:
            return True  # it does not know such a model
        return True

    is_server_ready = is_server_live

    def is_model_ready(self, model_name: str, model_version: str = "", **_: Any) -> bool:
        """Whether the server serves the model."""
        if not self.is_server_live():
            return False
        try:
            self._client.model(model_name, model_version).ping(LIVE_S)
        except InferenceError:
            return False
        return True

    def get_model_metadata(
        self, model_name: str, model_version: str = "", **_: Any
    ) -> dict[str, Any]:
        """Names, types and shapes of the tensors; -1 is the batch."""
        try:
            session = self._client.model(model_name, model_version)
        except InferenceError as error:
            raise _as_triton(error) from error
        tensors = {
            kind: [
                {"name": s.name, "datatype": triton_type(s.dtype), "shape": [-1, *s.shape]}
                for s in specs
            ]
            for kind, specs in (("inputs", session.inputs), ("outputs", session.outputs))
        }
        return {"name": model_name, "versions": [model_version or "1"], **tensors}

    # ---- shared memory

    def register_system_shared_memory(
        self, name: str, key: str, byte_size: int, offset: int = 0, **_: Any
    ) -> None:
        """Let tensors lie in a region that tritonclient.utils.shared_memory has made."""
        try:
            self._regions.register(name, key, byte_size, offset)
        except RegionError as error:
            raise _as_triton(error) from error

    def unregister_system_shared_memory(self, name: str = "", **_: Any) -> None:
        """Forget a region, or all."""
        try:
            self._regions.unregister(name)
        except RegionError as error:
            raise _as_triton(error) from error

    def get_system_shared_memory_status(
        self, region_name: str = "", **_: Any
    ) -> list[dict[str, Any]]:
        """The registered regions."""
        try:
            found = self._regions.find(region_name)
        except RegionError as error:
            raise _as_triton(error) from error
        return [
            {"name": r.name, "key": r.key, "offset": r.offset, "byte_size": r.byte_size}
            for r in found
        ]

    def close(self) -> None:
        """End all sessions."""
        self._client.close()
        self._regions.unregister()

    def __enter__(self) -> InferenceServerClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _in_order(
    specs: Sequence[TensorSpec], inputs: Mapping[str, InferInput], regions: Regions
) -> list[Array]:
    """The arrays of the inputs, as the model counts them."""
    names = [spec.name for spec in specs]
    if sorted(names) != sorted(inputs):
        raise BadRequestError(f"inputs {', '.join(inputs)}; the model has {', '.join(names)}")
    for spec in specs:
        if inputs[spec.name].datatype() != triton_type(spec.dtype):
            raise BadRequestError(
                f"{spec.name} is {inputs[spec.name].datatype()}; the model wants "
                f"{triton_type(spec.dtype)}"
            )
    return [inputs[name].array(regions) for name in names]


def _batch_of(specs: Sequence[TensorSpec], arrays: Sequence[Array]) -> int | None:
    """The batch that the arrays have in front of the model's shapes; None: there is none."""
    fronts = set()
    for spec, array in zip(specs, arrays, strict=True):
        front = array.shape[: array.ndim - len(spec.shape)]
        if front + spec.shape != array.shape or len(front) > 1:
            raise BadRequestError(
                f"{spec.name} has shape {list(array.shape)}; the model wants {[-1, *spec.shape]}"
            )
        fronts.add(front)
    if len(fronts) > 1:
        raise BadRequestError("the inputs are batches of different sizes")
    [front] = fronts
    return front[0] if front else None


def _output(
    spec: TensorSpec,
    batch: tuple[int, ...],
    asked: InferRequestedOutput | None,
    regions: Regions,
) -> Array:
    """Memory for an output: where it was asked to be, else new."""
    shape = (*batch, *spec.shape)
    if asked is None or asked.region is None:
        return np.empty(shape, spec.dtype)
    view = regions.view(*asked.region)
    size = spec.bytes * (batch[0] if batch else 1)
    if len(view) < size:
        raise BadRequestError(f"{spec.name} has {size} bytes; its region has {len(view)}")
    return np.frombuffer(view[:size], spec.dtype).reshape(shape)
