"""Messages of TorchServe's worker protocol, parsed in place.

Integers are big-endian ``i32``, a string is its length and its bytes, a list ends with -1::

    'I' { id  { header name, header value }* -1  { name, content type, value }* -1 }* -1
    'L' model name, path, i32 batch size, handler, i32 gpu, envelope, u8 limit pixels

The bytes between an id and the first value, here its *preamble*, repeat from request to request:
same client, same headers, same parameter. A run of bytes that was parsed once is recognised by
comparing it, and the strings that came of it are used again.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import struct
import uuid
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ts.context import RequestProcessor

from shunter.handlers.torchserve.inbox import BUFFER_SIZE, Inbox

INFER = b"I"
LOAD = b"L"

_I32 = struct.Struct("!i").unpack_from
_END_OF_LIST = (-1,)

Batch = tuple[list[RequestProcessor], list[dict[str, Any]], dict[int, str]]
"""Headers, inputs and request ids by index, as ``Service.retrieve_data_for_inference`` has them."""


class Preamble(NamedTuple):
    """What stands between the id and the first value of a request, parsed."""

    block: bytes
    name: str
    content_type: str
    fields: dict[str, Any]
    """The headers as a handler sees them, to be copied."""
    typed: bool
    """False if a request header has the parameter's name and so hides its content type."""


class PreambleCache:
    """The preambles seen lately, found by their bytes. Bounded; forgets all at once when full."""

    MAX_BLOCK = 4096
    MAX_BLOCKS = 256
    # A request that is not known costs one look-up per length.
    MAX_LENGTHS = 4

    def __init__(self) -> None:
        """Start empty."""
        self._known: dict[bytes, Preamble] = {}
        self._lengths: list[int] = []

    def __len__(self) -> int:
        """Return how many preambles are known."""
        return len(self._known)

    def find(self, data: bytearray, start: int) -> Preamble | None:
        """Return the preamble that stands in ``data`` at ``start``, if it is known."""
        for length in self._lengths:
            found = self._known.get(bytes(data[start : start + length]))
            if found is not None:
                return found
        return None

    def add(self, preamble: Preamble) -> None:
        """Remember ``preamble``."""
        length = len(preamble.block)
        if length > self.MAX_BLOCK:
            return
        if len(self._known) >= self.MAX_BLOCKS:
            self._known.clear()
            self._lengths.clear()
        if length not in self._lengths:
            self._lengths.insert(0, length)
            del self._lengths[self.MAX_LENGTHS :]
        self._known[preamble.block] = preamble


class Receiver(Inbox):
    """Messages of one connection, in the order in which they come."""

    def __init__(
        self, sock: socket.socket, size: int = BUFFER_SIZE, *, first: bytes = b""
    ) -> None:
        """See :class:`Inbox`."""
        super().__init__(sock, size, first=first)
        self._preambles = PreambleCache()
        self._last: Preamble | None = None

    def command(self) -> bytes:
        """Return the first byte of the next message, when it comes."""
        return self.byte()

    def load_message(self) -> dict[str, Any]:
        """Return the rest of a load message, in the form that TorchServe's loading wants."""
        message: dict[str, Any] = {
            "modelName": self.blob("model name"),
            "modelPath": self.blob("model path"),
            "batchSize": self.i32(),
            "handler": self.blob("handler name"),
        }
        gpu = self.i32()
        if gpu >= 0:
            message["gpu"] = gpu
        message["envelope"] = self.blob("envelope name")
        message["limitMaxImagePixels"] = self.byte() != b"\0"
        return message

    def batch(self) -> Batch:
        """Return the rest of an inference message."""
        # Read for each batch: a handler may set it while it loads.
        decode = os.environ.get("TS_DECODE_INPUT_REQUEST") in (None, "true")
        batch: Batch = [], [], {}
        self._take_known(batch, decode)
        while self._take_any(batch, decode):
            self._take_known(batch, decode)
        return batch

    def _take_known(self, batch: Batch, decode: bool) -> None:
        """Take the next requests as long as they are all here, known, and of one parameter."""
        last = self._last
        if last is None:
            return
        headers, inputs, ids = batch
        data, pos, end = self._data, self._pos, self._end
        while pos + 4 <= end:
            (length,) = _I32(data, pos)
            start = pos + 4 + length
            if length < 0:
                break
            if not data.startswith(last.block, start):
                found = self._preambles.find(data, start)
                if found is None:
                    break
                last = found
            # Behind `end` lie bytes of earlier messages; what matched there is refused here.
            value = start + len(last.block) + 4
            if value > end:
                break
            (length,) = _I32(data, value - 4)
            stop = value + length
            if length < 0 or stop + 4 > end or _I32(data, stop) != _END_OF_LIST:
                break
            _, name, content_type, fields, typed = last
            fields = fields.copy()
            if typed:
                fields[name] = {"content-type": content_type}
            raw = data[value:stop]
            ids[len(inputs)] = data[pos + 4 : start].decode("utf-8")
            headers.append(RequestProcessor(fields))
            inputs.append({name: decode_value(raw, content_type) if decode else raw})
            pos = stop + 4
        self._pos, self._last = pos, last

    def _take_any(self, batch: Batch, decode: bool) -> bool:
        """Take one request field by field; return False if the list has ended."""
        length = self.i32()
        if length == -1:
            return False
        headers, inputs, ids = batch
        request_id = self.text("request id", length)
        shifts, start = self._shifts, self._pos
        request_headers = self._request_headers()
        parameter = self._parameter()
        if parameter is not None and shifts == self._shifts:
            self._learn(bytes(self._data[start : self._pos]), *parameter, request_headers)
        values: dict[str, Any] = {}
        fields: dict[str, Any] = {}
        while parameter is not None:
            name, content_type = parameter
            raw = self.value()
            values[name] = decode_value(raw, content_type) if decode else raw
            fields[name] = {"content-type": content_type}
            parameter = self._parameter()
        fields.update(request_headers)
        ids[len(inputs)] = request_id
        headers.append(RequestProcessor(fields))
        inputs.append(values)
        return True

    def _request_headers(self) -> dict[str, str]:
        headers: dict[str, str] = {}
        data, pos, end = self._data, self._pos, self._end
        # Those that are here whole. Where tracing is on each request has headers of its own.
        while pos + 4 <= end:
            (length,) = _I32(data, pos)
            middle = pos + 4 + length
            if length < 0 or middle + 4 > end:
                break
            (length,) = _I32(data, middle)
            stop = middle + 4 + length
            if length < 0 or stop > end:
                break
            headers[data[pos + 4 : middle].decode("utf-8")] = data[middle + 4 : stop].decode(
                "utf-8"
            )
            pos = stop
        self._pos = pos
        while (length := self.i32()) != -1:
            name = self.text("header name", length)
            headers[name] = self.text("header value")
        return headers

    def _parameter(self) -> tuple[str, str] | None:
        """Return name and content type of the next parameter, None at the end of the list."""
        length = self.i32()
        if length == -1:
            return None
        name = self.text("parameter name", length)
        return name, self.text("content type")

    def _learn(self, block: bytes, name: str, kind: str, headers: dict[str, str]) -> None:
        fields = {name: None, **headers}
        self._last = Preamble(block, name, kind, fields, name not in headers)
        self._preambles.add(self._last)


def batch_of_bodies(requests: Iterable[tuple[bytes, str, Mapping[str, str]]]) -> Batch:
    """A batch of requests, each with a body, its content type and headers, however they came."""
    decode = os.environ.get("TS_DECODE_INPUT_REQUEST") in (None, "true")
    batch: Batch = [], [], {}
    headers, inputs, ids = batch
    for body, kind, given in requests:
        raw = bytearray(body)
        ids[len(inputs)] = str(uuid.uuid4())
        headers.append(RequestProcessor({"body": {"content-type": kind}, **given}))
        inputs.append({"body": decode_value(raw, kind) if decode else raw})
    return batch


def decode_value(raw: bytearray, content_type: str) -> Any:
    """Return what a handler gets for a value, as TorchServe decodes it."""
    if content_type == "application/json":
        try:
            return json.loads(raw.decode("utf-8"))
        except Exception:
            logging.warning(
                "Failed json decoding of input data. Forwarding encoded payload", exc_info=True
            )
    elif content_type.startswith("text"):
        try:
            return raw.decode("utf-8")
        except Exception:
            logging.warning(
                "Failed utf-8 decoding of input data. Forwarding encoded payload", exc_info=True
            )
    return raw
