"""A client of all models of one front end, or of several that serve the same, for threads."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any, TypeVar

from shunter.nic_frontend.client.connecting import Address, key_of
from shunter.nic_frontend.client.forks import OWNED
from shunter.nic_frontend.client.requests.attempts import Attempts, Many
from shunter.nic_frontend.client.requests.balance import Balancer
from shunter.nic_frontend.client.requests.batch import Batch
from shunter.nic_frontend.client.requests.calls import DEFAULT, Array, Options, one_or_all
from shunter.nic_frontend.client.requests.errors import InferenceError
from shunter.nic_frontend.client.session import Session
from shunter.nic_frontend.wire.hello import DEFAULT_KEY

_Found = TypeVar("_Found")


class Client:
    """All models of a server, for several threads: each thread has sessions of its own.

    A session is opened when a thread first asks a model. Use as a context manager, or close it
    when no thread uses it any more. With several URLs each request goes to one of the servers; the
    others are asked when it fails, if it has not run or is idempotent.
    """

    def __init__(self, url: str | Sequence[str], **settings: Any) -> None:
        """``settings``: key, key_id, encrypt, crc, timeout_s, window, spin, as of :class:`Session`.

        Raises ValueError for a wrong address or key file.
        """
        self.urls = [url] if isinstance(url, str) else list(url)
        if not self.urls:
            raise ValueError("no URL")
        for each in self.urls:
            Address.parse(each)
        self.url = self.urls[0]
        key = key_of(settings.get("key"), settings.pop("key_id", DEFAULT_KEY))
        self.settings: dict[str, Any] = {**settings, "key": key}
        """Of every session."""
        self._timeout_s: float = settings.get("timeout_s", 5.0)
        if len(self.urls) > 1:
            self.settings.setdefault("fail_fast", True)
        self._balancer = Balancer(len(self.urls))
        self._mine = threading.local()
        self._all: weakref.WeakSet[Session] = weakref.WeakSet()
        self._lock = threading.Lock()
        OWNED.add(self)

    def leave_to_parent(self) -> None:
        """In a child: threads that hold the lock are not there, nor the requests that are counted.

        Sessions are left by themselves.
        """
        self._lock, self._balancer = threading.Lock(), Balancer(len(self.urls))

    def model(self, name: str, version: str = "", server: int = 0) -> Session:
        """This thread's session with a model. Raises InferenceError. ``server``: which URL."""
        sessions = self._mine.__dict__
        session = sessions.get((name, version, server))
        if session is None:
            session = Session(self.urls[server], name, version=version, **self.settings)
            sessions[name, version, server] = session
            with self._lock:
                self._all.add(session)
        return session

    def infer(
        self, model: str, inputs: Array | Sequence[Array], *, version: str = "", **options: Any
    ) -> Any:
        """Ask once: an array, or a list of them when the model has several outputs.

        ``options``: fields of :class:`Options`. Raises InferenceError.
        """
        arrays = inputs if isinstance(inputs, list | tuple) else [inputs]
        found = Options(**options) if options else DEFAULT
        if len(self.urls) == 1:
            return one_or_all(self.model(model, version).infer(arrays, found))
        return one_or_all(
            self._somewhere(model, version, found, lambda each, left: each.infer(arrays, left))
        )

    def infer_many(
        self,
        model: str,
        requests: Sequence[Array | Sequence[Array]],
        *,
        version: str = "",
        **options: Any,
    ) -> list[Any]:
        """Ask one server many times at once; for each what :meth:`infer` returns, or its error."""
        arrays = [each if isinstance(each, list | tuple) else [each] for each in requests]
        found = self._many(model, version, Options(**options), arrays, None)
        return [each if isinstance(each, InferenceError) else one_or_all(each) for each in found]

    def _many(
        self,
        model: str,
        version: str,
        options: Options,
        requests: Sequence[Sequence[Array]],
        out: Sequence[Sequence[Array]] | None,
    ) -> list[Any]:
        many = Many(len(requests))

        def ask(session: Session, left: Options) -> None:
            places = None if out is None else [out[i] for i in many.left]
            asked = [requests[i] for i in many.left]
            many.take(session.infer_many(asked, left, out=places), options)

        try:
            self._somewhere(model, version, options, ask)
        except InferenceError as error:
            many.end(error)
        return many.found

    def stream(
        self, model: str, inputs: Array | Sequence[Array], *, version: str = "", **options: Any
    ) -> Iterator[Any]:
        """Ask a model whose answers come in parts: of each what :meth:`infer` returns.

        ``options`` as of :meth:`Session.stream`. It is never asked of another server.
        """
        arrays = inputs if isinstance(inputs, list | tuple) else [inputs]
        session = self._somewhere(model, version, DEFAULT, lambda each, _: each)
        with closing(session.stream(arrays, **options)) as parts:
            for part in parts:
                yield one_or_all(part)

    def infer_batch(
        self, model: str, inputs: Array | Sequence[Array], *, version: str = "", **options: Any
    ) -> Any:
        """Arrays ``[n, ...]`` are n requests; as :meth:`infer`, with all answers as ``[n, ...]``.

        Raises BatchError when some of them failed, which has the others' answers.
        """
        arrays = inputs if isinstance(inputs, list | tuple) else [inputs]
        found = Options(**options)
        tensors = self._somewhere(model, version, found, lambda session, _: session.tensors)
        batch = Batch(tensors, arrays)
        answers = self._many(model, version, found, batch.requests, batch.places)
        return one_or_all(batch.outputs(answers))

    def _somewhere(
        self, model: str, version: str, options: Options, ask: Callable[[Session, Options], _Found]
    ) -> _Found:
        """What a server says; another is asked as long as that may and can be."""
        attempts = Attempts(self._balancer, options, self._timeout_s)
        while True:
            with self._lock:
                server = attempts.begin(time.monotonic_ns())
            error: BaseException | None = None
            try:
                return ask(self.model(model, version, server), attempts.options)
            except BaseException as raised:
                error = raised
            finally:
                with self._lock:
                    is_over = attempts.end(error, time.monotonic_ns())
            if is_over:
                raise error

    def close(self) -> None:
        """End the sessions of all threads."""
        with self._lock:
            sessions = list(self._all)
            self._all.clear()
        for session in sessions:
            session.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
