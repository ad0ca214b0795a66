"""A handler that streams ``parts`` pieces for each request of its batch."""

import json
import os

from ts.handler_utils.utils import send_intermediate_predict_response


def _parse(row):
    body = row.get("body", row.get("data"))
    return json.loads(body) if isinstance(body, (bytes, bytearray)) else body


def handle(data, context):
    if not data:
        return None
    requests = [_parse(row) for row in data]
    last = max(r["parts"] for r in requests) - 1
    for part in range(last):
        pieces = [f"{r['id']}:{part} " for r in requests]
        send_intermediate_predict_response(
            pieces, context.request_ids, "Intermediate Prediction success", 200, context
        )
        if any(r.get("crash_after") == part for r in requests):
            os._exit(9)
    return [f"{r['id']}:{last}" for r in requests]
