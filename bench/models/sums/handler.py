"""The smallest useful handler: 16 numbers in, 4 sums out, and if asked some work in between."""

import json
import time


class SumsHandler:
    """Adds groups of four numbers; ``{"x": [...], "work_ms": 2}`` also sleeps, once per batch."""

    def initialize(self, context):
        """Nothing to load."""

    def handle(self, data, context):
        """Return one list of four sums per request."""
        bodies = [row.get("body") for row in data]
        bodies = [json.loads(b) if isinstance(b, (bytes, bytearray)) else b for b in bodies]
        work_ms = max((b.get("work_ms", 0) for b in bodies if isinstance(b, dict)), default=0)
        if work_ms:
            time.sleep(work_ms / 1000)
        rows = [b["x"] if isinstance(b, dict) else b for b in bodies]
        return [[sum(row[i : i + 4]) for i in range(0, 16, 4)] for row in rows]
