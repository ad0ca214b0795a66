"""The BentoML service: one endpoint with adaptive batching, the model code of the archive.

Loaded by BentoML in its own process; ``bentoml_server`` sets what it reads.
"""

from __future__ import annotations

import logging

import bentoml

from rivals.hosted import Hosted, settings

_GIVEN = settings()

# BentoML logs a traceback for every refused request. That would slow it down when it matters.
logging.getLogger("bentoml").setLevel(logging.CRITICAL)
logging.getLogger("bentoml.io").setLevel(logging.CRITICAL)


@bentoml.service(
    name="minilm",
    workers=_GIVEN["workers"],
    traffic={"timeout": _GIVEN["timeout_s"]},
    metrics={"enabled": False},
    logging={"access": {"enabled": False}},
)
class Minilm:
    """Texts to embeddings."""

    def __init__(self) -> None:
        self._hosted = Hosted()

    @bentoml.api(
        batchable=True,
        max_batch_size=_GIVEN["max_batch"],
        max_latency_ms=_GIVEN["max_latency_ms"],
    )
    def embed(self, texts: list[str]) -> list[str]:
        """One answer for each text.

        The handler's own JSON goes out as a string: for BentoML that is cheaper than an array.
        """
        return self._hosted.answers(texts)
