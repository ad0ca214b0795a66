"""Answers of every kind a handler may give, one per request, as the request's text says."""

import json

from ts.utils.util import PredictionException

KINDS = {
    "bytes": bytes(range(256)),
    "text": "grüße",
    "list": [1, 2.5, None, "x"],
    "dict": {"b": 1, "a": [True, float("inf")]},
    "number": 7,
    "unserializable": object(),
}


def handle(data, context):
    if not data:
        return None
    row = data[0]
    kind = row.get("kind") or row.get("body") or row.get("data")
    kind = kind.decode() if isinstance(kind, (bytes, bytearray)) else kind
    if kind == "status":
        context.set_response_status(418, "Teapot", 0)
        context.set_response_content_type(0, "text/tea")
        return ["short and stout"]
    if kind == "refuse":
        raise PredictionException("not today", 513)
    if kind == "raise":
        raise ValueError(kind)
    if kind == "wrong length":
        return ["a", "b"]
    if kind == "request":
        agent = context.get_request_header(0, "user-agent")
        return [json.dumps([sorted(row), agent, context.get_request_header(0, "X-Mine")])]
    return [KINDS[kind]]
