"""TorchServe's requests behind a server that has only tensors: a body is a byte string.

The handler is called as for TorchServe, with the same ``data`` and context, and what it returns
becomes the same bytes. A request that has failed, by ``context.set_response_status`` too, is an
error of that server's, with the status and the text.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

import torch
from ts.service import Service

from shunter.handlers.queue.packed_batch import PackedBatch
from shunter.handlers.torchserve.invocation import Failed, results_of
from shunter.handlers.torchserve.metrics import muted
from shunter.handlers.torchserve.receive import batch_of_bodies
from shunter.handlers.torchserve.reply import body_of

MOST_SAID = 1000
"""Bytes of an error's text: with gRPC it travels among the headers, which are small."""
_FINE = range(200, 400)


class NoParts:
    """In place of the connection: a handler that streams would write parts into it."""

    def sendall(self, data: object) -> NoReturn:
        """Refuse it."""
        raise RuntimeError("parts of answers are not sent behind this server: return whole ones")


class Bodies:
    """A loaded model of TorchServe's kind, as a handler of packed requests."""

    def __init__(self, service: Service) -> None:
        """``service``: with its handler as it is called now."""
        self._service, self._entry = service, service._entry_point

    def infer(self, batch: PackedBatch) -> list[bytes]:
        """An answer for each request, or the text of its error."""
        self._service.set_cl_socket(NoParts())
        # Of these handlers each says itself whether it wants gradients. Nobody reads metrics here.
        with torch.inference_mode(False), muted():
            return self._answers(batch)

    def _answers(self, batch: PackedBatch) -> list[bytes]:
        answers = [b""] * len(batch)
        good, requests = [], []
        for place, (body, kind, headers) in enumerate(zip(*batch.inputs, strict=True)):
            try:
                requests.append((body, _media_type(kind), _headers(headers)))
                good.append(place)
            except ValueError as error:
                answers[place] = _refuse(batch, place, 400, str(error))
        if not good:
            return answers
        found = results_of(self._service, batch_of_bodies(requests), self._entry)
        if isinstance(found, Failed):
            for place in good:
                answers[place] = _refuse(batch, place, found.code, found.message)
            return answers
        processors = self._service.context.request_processor
        for index, place in enumerate(good):
            answers[place] = _answer(batch, place, found[index], processors[index])
        return answers


def _answer(batch: PackedBatch, place: int, result: Any, processor: Any) -> bytes:
    content = body_of(result)
    if content is None:
        return _refuse(batch, place, 503, "Unsupported model output data type.")
    status = processor.get_response_status_code()
    if status is None or status in _FINE:
        return bytes(content)
    phrase = processor.get_response_status_phrase()
    text = bytes(content[:MOST_SAID]).decode("utf-8", "replace")
    return _refuse(batch, place, status, f"{phrase}: {text}" if phrase else text)


def _refuse(batch: PackedBatch, place: int, status: int, text: str) -> bytes:
    batch.fail(place, min(max(status, 400), 599))
    said = f"{status} {text}".encode()[:MOST_SAID]
    return said.decode("utf-8", "ignore").encode()


def _media_type(given: bytes) -> str:
    """Without its parameters, as the server hands it on."""
    return given.decode("utf-8").partition(";")[0].strip()


def _headers(given: bytes) -> dict[str, str]:
    """Of a request, from a JSON object. Raises ValueError."""
    if not given:
        return {}
    found = json.loads(given)
    if not isinstance(found, dict) or not all(isinstance(each, str) for each in found.values()):
        raise ValueError('headers: a JSON object of texts, such as {"x-user": "ada"}')
    return found
