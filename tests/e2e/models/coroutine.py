"""A handler for asynchronous communication."""

import json


class Coroutine:
    def initialize(self, context):
        self.context = context

    async def handle(self, data, context):
        bodies = [row.get("body", row.get("data")) for row in data]
        bodies = [json.loads(b) if isinstance(b, (bytes, bytearray)) else b for b in bodies]
        return [{"id": body["id"]} for body in bodies]
