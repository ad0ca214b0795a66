"""Of each text its words in capitals, one after the other: each yield has a word of each text,
and its number, counted from the id of the sequence.

A text is over with its last word. ``DIE`` ends the worker, ``FAIL`` the batch, and at ``WAIT`` it
yields nothing until the file ``WORDS_GATE`` exists. Texts that nobody wants any more, and how many
words were yielded, go to the file ``WORDS_RECORD`` when the batch is over.
"""

import json
import os
import signal
import time


class Words:
    def initialize(self, context):
        pass

    def infer(self, batch):
        texts = [text.decode().split() for text in batch["text"]]
        steps = 0
        try:
            for step in range(max(map(len, texts))):
                words = [text[step] if step < len(text) else None for text in texts]
                if "DIE" in words:
                    time.sleep(0.2)  # what was yielded is seen
                    os.kill(os.getpid(), signal.SIGKILL)
                if "FAIL" in words:
                    raise ValueError("told to fail")
                while "WAIT" in words and not os.path.exists(os.environ["WORDS_GATE"]):
                    time.sleep(0.002)
                    yield {"word": [None] * len(texts), "number": [None] * len(texts)}
                for i, text in enumerate(texts):
                    if step + 1 == len(text):
                        batch.end(i)
                given = [word and word.upper().encode() for word in words]
                yield {"word": given, "number": batch["sequence_id"] + step}
                steps += 1
        finally:
            with open(os.environ["WORDS_RECORD"], "a") as record:
                line = {"unwanted": sorted(batch.unwanted), "steps": steps, "texts": len(texts)}
                record.write(json.dumps(line) + "\n")

    def handle(self, data, context):
        raise NotImplementedError("this one is asked by tensors only")
