"""The front end's client in the shape of ``tritonclient``: for code that was written for Triton.

    from shunter.nic_frontend.tritonlike import InferenceServerClient, InferInput

A tensor of Triton has the batch in front; a request of ours is one element of it. A shape of
``[n, ...]`` is therefore ``n`` requests, sent together and answered as one array; the server
batches them again as it sees fit. A shape without the batch is one request.

Models whose requests are batches themselves get as many rows in each as they take. Where requests
choose their sizes, those of a batch have one shape, and so must their answers. BF16 tensors are
arrays of float32, BYTES of objects.

Sequences, streams and class counts are refused, as is what manages a server.
``timeout`` (µs) is the server's deadline, ``client_timeout`` (s) the client's patience; a
``priority`` of 1 is strict, one above 1 best effort. What a server or model is like is told as
Triton's HTTP client does, in dictionaries. ``async_infer`` takes a callback, as in gRPC, or none,
as in HTTP.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any

from shunter.batching.queue.tensor_spec import TensorSpec
from shunter.nic_frontend.client.client import Client
from shunter.nic_frontend.client.connecting import Key
from shunter.nic_frontend.client.requests.calls import Array, Options
from shunter.nic_frontend.client.requests.errors import (
    BadRequestError,
    InferenceError,
    UnreachableError,
)
from shunter.nic_frontend.client.session import Session
from shunter.nic_frontend.tritonlike.asking import ask
from shunter.nic_frontend.tritonlike.async_requests import InferAsyncRequest, Threads
from shunter.nic_frontend.tritonlike.errors import as_triton
from shunter.nic_frontend.tritonlike.models import (
    NOT_SERVED,
    model_config,
    model_metadata,
    server_metadata,
)
from shunter.nic_frontend.tritonlike.shared_memory import SharedMemory
from shunter.nic_frontend.tritonlike.shared_regions import RegionError
from shunter.nic_frontend.tritonlike.tensors import (
    InferenceServerException,
    InferInput,
    InferRequestedOutput,
    InferResult,
)
from shunter.nic_frontend.wire.hello import DEFAULT_KEY

LIVE_S = 1.0
"""A server that says nothing for so long is not live."""


class InferenceServerClient(SharedMemory):
    """A client of all models of a front end, for several threads."""

    def __init__(
        self,
        url: str,
        verbose: bool = False,
        *,
        key: Key | None = None,
        key_id: str = DEFAULT_KEY,
        encrypt: bool = False,
        network_timeout: float = 60.0,
        concurrency: int = 8,
        ssl: bool = False,
        **_: Any,
    ) -> None:
        """``url`` as of Client; without a scheme it is ``udp://``. ``network_timeout``: seconds.

        ``concurrency``: requests of ``async_infer`` that run at the same time. What else Triton's
        clients take has no meaning here. Raises InferenceServerException for ``ssl``: nobody shall
        take plain text for encrypted.
        """
        if ssl:
            text = "there is no TLS; key= names the pre-shared key, encrypt=True encrypts tensors"
            raise as_triton(BadRequestError(text))
        url = url if "://" in url else f"udp://{url}"
        self._verbose = verbose
        self._client = Client(
            url, key=key, key_id=key_id, encrypt=encrypt, timeout_s=network_timeout
        )
        super().__init__()
        self._threads = Threads(concurrency)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """What Triton's clients have and this one has not says so when it is called."""
        if name not in NOT_SERVED:
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")

        def refuse(*_: Any, **__: Any) -> None:
            raise InferenceServerException(f"{name} is not served", "StatusCode.UNIMPLEMENTED")

        return refuse

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
            raise as_triton(BadRequestError("sequences are not served"))
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
            raise as_triton(error) from error
        if self._verbose:
            print(f"{model_name}: {1000 * (time.perf_counter() - begun):.3f} ms")
        return InferResult(model_name, model_version, request_id, found, outputs)

    def async_infer(
        self,
        model_name: str,
        inputs: Sequence[InferInput],
        callback: Callable[..., Any] | None = None,
        model_version: str = "",
        outputs: Sequence[InferRequestedOutput] | None = None,
        request_id: str = "",
        **more: Any,
    ) -> InferAsyncRequest:
        """Ask in another thread, which has sessions of its own; the inputs are copied now.

        ``callback``: called there with ``result`` and ``error``, one of which is None. ``more``: as
        of :meth:`infer`. Raises InferenceServerException when the client was closed.
        """
        if callback is not None and not callable(callback):
            text = "the third argument is the callback; give model_version by its name"
            raise as_triton(BadRequestError(text))
        taken = [each.snapshot() for each in inputs]
        wanted = None if outputs is None else [copy(each) for each in outputs]
        again = partial(
            self.infer, model_name, taken, model_version, wanted, request_id, **more
        )
        return self._threads.run(again, callback)

    def _infer(
        self,
        session: Session,
        inputs: Sequence[InferInput],
        outputs: Sequence[InferRequestedOutput] | None,
        options: Options,
    ) -> dict[str, Array]:
        return ask(session, inputs, outputs, self._regions, options)

    # ---- the server

    def is_server_live(
        self,
        headers: Mapping[str, str] | None = None,
        client_timeout: float | None = None,
        **_: Any,
    ) -> bool:
        """Whether something answers."""
        settings = {**self._client.settings, "timeout_s": client_timeout or LIVE_S}
        try:
            Session(self._client.url, "", **settings).close()
        except UnreachableError:
            return False
        except InferenceError:
            return True  # it does not know such a model
        return True

    is_server_ready = is_server_live

    def is_model_ready(
        self,
        model_name: str,
        model_version: str = "",
        headers: Mapping[str, str] | None = None,
        client_timeout: float | None = None,
        **_: Any,
    ) -> bool:
        """Whether the server serves the model."""
        if not self.is_server_live(client_timeout=client_timeout):
            return False
        try:
            with self._session(model_name, model_version, client_timeout or LIVE_S) as session:
                session.ping()
        except InferenceError:
            return False
        return True

    def get_server_metadata(
        self,
        headers: Mapping[str, str] | None = None,
        client_timeout: float | None = None,
        **_: Any,
    ) -> dict[str, Any]:
        """Name, version of the wire format, extensions. Raises InferenceServerException."""
        if not self.is_server_live(client_timeout=client_timeout):
            raise as_triton(UnreachableError("the server says nothing"))
        return server_metadata()

    def get_model_metadata(
        self,
        model_name: str,
        model_version: str = "",
        headers: Mapping[str, str] | None = None,
        client_timeout: float | None = None,
        **_: Any,
    ) -> dict[str, Any]:
        """Names, types and shapes of the tensors. Raises InferenceServerException."""
        found = self._described(model_name, model_version, client_timeout)
        return model_metadata(model_name, model_version, *found)

    def get_model_config(
        self,
        model_name: str,
        model_version: str = "",
        headers: Mapping[str, str] | None = None,
        client_timeout: float | None = None,
        **_: Any,
    ) -> dict[str, Any]:
        """What is known of a configuration: the tensors. Raises InferenceServerException."""
        return model_config(
            model_name, *self._described(model_name, model_version, client_timeout)
        )

    def _described(
        self, name: str, version: str, timeout_s: float | None
    ) -> tuple[Sequence[TensorSpec], Sequence[TensorSpec]]:
        try:
            if timeout_s is None:
                session = self._client.model(name, version)
            else:
                with self._session(name, version, timeout_s) as session:
                    pass
        except InferenceError as error:
            raise as_triton(error) from error
        return session.inputs, session.outputs

    def _session(self, name: str, version: str, timeout_s: float) -> Session:
        """Another one, of another patience."""
        settings = {**self._client.settings, "timeout_s": timeout_s}
        return Session(self._client.url, name, version=version, **settings)

    def close(self) -> None:
        """End all sessions; requests of ``async_infer`` that have not begun are cancelled."""
        self._threads.close(self._end)

    def _end(self) -> None:
        self._client.close()
        self._regions.unregister()

    def __enter__(self) -> InferenceServerClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
