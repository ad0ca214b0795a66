"""A handler for asynchronous communication."""

import json
import time


class Coroutine:
    def initialize(self, context):
        # Stock's AsyncWorkerThread makes its latch after it has sent the load command, and a worker
        # whose answer comes before that is lost: a NullPointerException, and no request of the
        # model is ever answered. On a busy host that was one load in some dozens.
        time.sleep(1)
        self.context = context

    async def handle(self, data, context):
        bodies = [row.get("body", row.get("data")) for row in data]
        bodies = [json.loads(b) if isinstance(b, (bytes, bytearray)) else b for b in bodies]
        return [{"id": body["id"]} for body in bodies]
