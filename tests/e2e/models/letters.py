"""Byte strings in, JSON out: how often each letter is in a text. A text that is no UTF-8 is bad."""

import json
from collections import Counter


class Letters:
    def initialize(self, context):
        pass

    def infer(self, batch):
        found = []
        for request, text in enumerate(batch["text"]):
            try:
                found.append(self._count(text))
            except UnicodeDecodeError:
                batch.refuse(request)
                found.append(b"")
        return found

    def _count(self, text):
        return json.dumps(Counter(text.decode()), ensure_ascii=False).encode()

    def handle(self, data, context):
        return [self._count(row["body"]).decode() for row in data]
