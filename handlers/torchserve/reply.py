"""TorchServe's reply to a batch, byte for byte where that can be read, in one piece.

::

    i32 code, message
    { id, content type, i32 status, phrase, i32 count { name, value }*count, body }* i32 -1

Where the server takes metrics out of replies, their lines follow the message of one that succeeds,
which nobody else reads. Failures are rare and go through TorchServe's own encoder; so do replies
that a streaming handler sends in between.
"""

from __future__ import annotations

import io
import logging
import struct
from typing import Any

from ts.context import Context
from ts.protocol.otf_message_handler import create_predict_response, encode_response_headers

from shunter.handlers.torchserve.json_text import dumps
from shunter.handlers.torchserve.without_torch import is_tensor

_i32 = struct.Struct("!i").pack
_MESSAGE = b"Prediction success"
_HEAD = _i32(200) + _i32(len(_MESSAGE)) + _MESSAGE
_END_OF_LIST = _i32(-1)

# Content type, status 200, phrase, headers: of a request whose handler set none of them.
_PLAIN = struct.Struct("!iiiii").pack


def failure_reply(ids: dict[int, str], message: str, code: int) -> bytes:
    """Return the reply that fails a whole batch."""
    return create_predict_response(None, ids, message, code)


def success_reply(
    results: list[Any], ids: dict[int, str], context: Context, metrics: str = ""
) -> bytes:
    """Return the reply with one result for each id, or the failure if one has no JSON."""
    parts: list[bytes | bytearray] = [_head(metrics) if metrics else _HEAD]
    processors = context.request_processor
    for index, request_id in ids.items():
        processor = processors[index]
        if context.stopping_criteria or processor.get_response_headers():
            _mark_stream_end(results[index], index, context)
        body = body_of(results[index])
        if body is None:
            return failure_reply(ids, "Unsupported model output data type.", 503)
        encoded_id = request_id.encode("utf-8")
        if (
            processor.get_response_headers()
            or processor.get_response_status_code() != 200
            or processor.get_response_status_phrase()
        ):
            described = _description(processor) + _i32(len(body))
        else:
            described = _PLAIN(0, 200, 0, 0, len(body))
        parts += (_i32(len(encoded_id)), encoded_id, described, body)
    parts.append(_END_OF_LIST)
    return b"".join(parts)


def _mark_stream_end(result: Any, index: int, context: Context) -> None:
    """Tell the front end whether this answer of a streamed request is the last."""
    if context.stopping_criteria:
        is_stop = context.stopping_criteria[index](result)
        if is_stop is not None:
            context.set_response_header(index, "ts_stream_next", "false" if is_stop else "true")
    elif context.get_response_headers(index).get("ts_stream_next") == "true":
        context.set_response_header(index, "ts_stream_next", "false")


def _description(processor: Any) -> bytes:
    """Return content type, status and headers. All lengths are in bytes: so they are read, by
    TorchServe too, whose own encoder counts characters of content type and phrase."""
    headers = processor.get_response_headers()
    content_type = (headers.get("content-type") or "").encode("utf-8")
    status = processor.get_response_status_code()
    phrase = processor.get_response_status_phrase()
    status = 200 if status is None else status
    phrase = b"" if phrase is None else phrase.encode("utf-8")
    return b"".join(
        (
            _i32(len(content_type)),
            content_type,
            _i32(status),
            _i32(len(phrase)),
            phrase,
            encode_response_headers(headers),
        )
    )


def _head(metrics: str) -> bytes:
    message = _MESSAGE + b"\n" + metrics.encode("utf-8", "backslashreplace")
    return _i32(200) + _i32(len(message)) + message


def body_of(value: Any) -> bytes | bytearray | None:
    """Return the bytes of one result, None (and the reason in the log) if it has none."""
    try:
        kind = type(value)
        if kind is not list and kind is not dict:  # nothing of torch is that, and the test is slow
            if isinstance(value, (bytes, bytearray)):
                return value
            if isinstance(value, str):
                return value.encode("utf-8")
            if is_tensor(value):
                return _saved(value)
        return dumps(value).encode("utf-8")
    except MemoryError:  # that is no fault of the result
        raise
    except Exception:  # half a surrogate pair, a circle, a subclass of its own: nothing to die of
        logging.warning("Unable to serialize model output.", exc_info=True)
        return None


def _saved(tensor: Any) -> bytes:
    import torch

    file = io.BytesIO()
    torch.save(tensor, file)
    return file.getvalue()
