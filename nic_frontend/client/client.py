"""A client of all models of a front end, for several threads."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import Any

from shunter.nic_frontend.client.calls import Array, Options, one_or_all
from shunter.nic_frontend.client.connecting import Address, key_of
from shunter.nic_frontend.client.session import Session
from shunter.nic_frontend.wire.hello import DEFAULT_KEY


class Client:
    """All models of a server, for several threads: each thread has sessions of its own.

    A session is opened when a thread first asks a model. Use as a context manager, or close it
    when no thread uses it any more.
    """

    def __init__(self, url: str, **settings: Any) -> None:
        """``settings``: key, key_id, encrypt, crc, timeout_s, window and spin, as of Session.

        Raises ValueError for a wrong address or key file.
        """
        Address.parse(url)
        self.url = url
        key = key_of(settings.get("key"), settings.pop("key_id", DEFAULT_KEY))
        self.settings: dict[str, Any] = {**settings, "key": key}
        """Of every session."""
        self._mine = threading.local()
        self._all: weakref.WeakSet[Session] = weakref.WeakSet()
        self._lock = threading.Lock()

    def model(self, name: str, version: str = "") -> Session:
        """This thread's session with a model. Raises InferenceError."""
        sessions = self._mine.__dict__
        session = sessions.get((name, version))
        if session is None:
            session = Session(self.url, name, version=version, **self.settings)
            sessions[name, version] = session
            with self._lock:
                self._all.add(session)
        return session

    def infer(
        self, model: str, inputs: Array | Sequence[Array], *, version: str = "", **options: Any
    ) -> Any:
        """Ask once: an array, or a list of them when the model has several outputs.

        ``options``: fields of :class:`Options`. Raises InferenceError.
        """
        session = self.model(model, version)
        arrays = inputs if isinstance(inputs, list | tuple) else [inputs]
        return one_or_all(session.infer(arrays, Options(**options)))

    def infer_many(
        self,
        model: str,
        requests: Sequence[Array | Sequence[Array]],
        *,
        version: str = "",
        **options: Any,
    ) -> list[Any]:
        """Ask many times at once; for each what :meth:`infer` returns."""
        session = self.model(model, version)
        arrays = [each if isinstance(each, list | tuple) else [each] for each in requests]
        return [one_or_all(found) for found in session.infer_many(arrays, Options(**options))]

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
