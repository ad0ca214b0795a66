"""One request at a time by REST, gRPC, or the network front end, and how it ended.

Every request may run twice: what a killed worker or front end held is answered all the same. An end
is ``right``, ``wrong``, ``too late`` (refused because of the deadline that it named), or else says
what there was instead of an answer.
"""

from __future__ import annotations

import contextlib
import http.client
from dataclasses import dataclass
from typing import Protocol

import grpc
from pool.callers import RIGHT, TIMEOUT_S, WRONG
from pool.churn import IDEMPOTENT
from rpc.sides import open_session

from shunter.nic_frontend.client import InferenceError, Session, TooLateError
from shunter.plugins.torchserve.grpc_client import InferenceClient
from soaking.targets import Question, Target

TOO_LATE, ABSENT = "too late", "absent"
"""``absent``: the model is not there, or has no worker, and the server says so."""
_SAY_ABSENT = ("not found", "version: null does not exist")
"""What TorchServe's own gRPC says, with INTERNAL, when it has no such model: the latter while the
workers of the last version end, which has been taken away before the name is."""
REASON = "The deadline cannot be met"
"""How the documented text of a refusal begins."""


@dataclass(frozen=True)
class Terms:
    """What a request says of itself."""

    of_class: str | None = None
    deadline_ms: float | None = None

    def headers(self) -> dict[str, str]:
        """For REST; gRPC has entries of the same names."""
        found = dict(IDEMPOTENT)
        if self.of_class:
            found["x-shunter-class"] = self.of_class
        if self.deadline_ms:
            found["x-shunter-deadline-ms"] = f"{self.deadline_ms:g}"
        return found

    def is_refusal(self, status: object, expected: object, text: str) -> bool:
        """Whether it is refused because of its deadline, as documented."""
        return self.deadline_ms is not None and status == expected and REASON in text


class Asker(Protocol):
    """A client for one thread."""

    name: str

    def ask(self, target: Target, question: Question, terms: Terms) -> str:
        """How the request ended."""

    def close(self) -> None:
        """Let go of its connections."""


def judged(question: Question, content: bytes) -> str:
    """Of an answer."""
    return RIGHT if question.is_right(content) else WRONG


class Rest:
    """One connection that stays."""

    name = "rest"

    def __init__(self, port: int) -> None:
        """To a server on this host."""
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)

    def ask(self, target: Target, question: Question, terms: Terms) -> str:
        """See :class:`Asker`."""
        headers = {"Content-Type": question.content_type, **terms.headers()}
        path = f"/predictions/{target.name}"
        try:
            self._connection.request("POST", path, question.body, headers)
            answer = self._connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            return type(error).__name__
        if answer.status == 200:
            return judged(question, content)
        text = content.decode(errors="replace")
        if terms.is_refusal(answer.status, 504, text):
            return TOO_LATE
        if answer.status in (404, 503) and target.changing:
            return ABSENT
        return f"status {answer.status}: {text[:160]}"

    def close(self) -> None:
        """See :class:`Asker`; the next request opens another one."""
        self._connection.close()


class Grpc:
    """One channel."""

    name = "grpc"

    def __init__(self, port: int) -> None:
        """To a server on this host."""
        self._client = InferenceClient(f"127.0.0.1:{port}")

    def ask(self, target: Target, question: Question, terms: Terms) -> str:
        """See :class:`Asker`."""
        inputs = {key: value.encode() for key, value in terms.headers().items()}
        inputs[question.key] = question.body
        try:
            content = self._client.predict(target.name, inputs, timeout_s=TIMEOUT_S)
        except grpc.RpcError as error:
            code, text = error.code(), error.details() or ""
            if terms.is_refusal(code, grpc.StatusCode.DEADLINE_EXCEEDED, text):
                return TOO_LATE
            absent = (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNAVAILABLE)
            says_so = any(each in text.lower() for each in _SAY_ABSENT)
            if target.changing and (code in absent or says_so):
                return ABSENT
            return f"{code.name}: {text[:160]}"
        return judged(question, content)

    def close(self) -> None:
        """See :class:`Asker`."""
        self._client.close()


class Network:
    """A session with each model, over one kind of transport."""

    def __init__(self, url: str) -> None:
        """``udp://``, ``tcp://`` or ``unix://``."""
        self.name, self._url = url.partition(":")[0], url
        self._sessions: dict[str, Session] = {}

    def ask(self, target: Target, question: Question, terms: Terms) -> str:
        """See :class:`Asker`."""
        best_effort = None if terms.of_class is None else terms.of_class == "best_effort"
        how = {"best_effort": best_effort, "deadline_ms": terms.deadline_ms, "idempotent": True}
        assert question.tensor is not None
        try:
            [answer] = self.session(target).infer([question.tensor], **how)
        except InferenceError as error:
            # The same class says that the client's own patience is over.
            if isinstance(error, TooLateError) and "the deadline ha" in str(error):
                return TOO_LATE
            return f"{type(error).__name__}: {error}"
        return judged(question, answer.tobytes())

    def session(self, target: Target) -> Session:
        """Opened once; after that it connects again by itself."""
        found = self._sessions.get(target.name)
        if found is None:
            found = open_session(self._url, target, timeout_s=TIMEOUT_S)
            self._sessions[target.name] = found
        return found

    def close(self) -> None:
        """See :class:`Asker`."""
        for each in self._sessions.values():
            with contextlib.suppress(Exception):
                each.close()
        self._sessions.clear()


SCHEMES = ("udp", "tcp", "unix")
