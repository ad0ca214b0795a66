"""The LitServe service, batched. Run by itself."""

from __future__ import annotations

import logging
from typing import Any

import litserve

from rivals.hosted import settings
from rivals.peers import models

_GIVEN = settings()


class Model(litserve.LitAPI):
    """What is served."""

    def setup(self, device: str) -> None:
        """In each worker."""
        self._answers = models.parsed(_GIVEN["served"])

    def decode_request(self, request):
        """It is parsed. LitServe takes an annotation for the type of a query."""
        return request

    def predict(self, x: Any) -> Any:
        """A batch, or one body where the largest batch is one."""
        return self._answers(x) if _GIVEN["max_batch"] > 1 else self._answers([x])[0]

    def encode_response(self, output: Any) -> Any:
        """LitServe makes JSON of it."""
        return output


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    api = Model(max_batch_size=_GIVEN["max_batch"], batch_timeout=_GIVEN["delay_ms"] / 1e3)
    server = litserve.LitServer(
        api,
        accelerator="cpu",
        workers_per_device=_GIVEN["workers"],
        timeout=60,
        fast_queue=_GIVEN["fast"],
    )
    server.run(
        host="127.0.0.1",
        port=_GIVEN["port"],
        num_api_servers=_GIVEN["front_ends"],
        log_level="critical",
        access_log=False,
        generate_client_file=False,
    )
