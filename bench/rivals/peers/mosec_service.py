"""The mosec service: one stage, batched. Run by itself; mosec reads the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mosec import Server, Worker, runtime

from rivals.hosted import settings
from rivals.peers import models

_GIVEN = settings()
# mosec looks for its program where Python has its scripts; here it lies beside the package.
runtime.get_mosec_path = lambda: Path(runtime.__file__).parents[1] / "bin/mosec"


class Model(Worker):
    """What is served."""

    def __init__(self) -> None:
        super().__init__()
        self._answers = models.raw(_GIVEN["served"])

    def deserialize(self, data: bytes) -> bytes:
        """The body as it is."""
        return data

    def serialize(self, data: bytes) -> bytes:
        """The answer as it is."""
        return data

    def forward(self, data: Any) -> Any:
        """A batch, or one body where the largest batch is one."""
        return self._answers(data) if _GIVEN["max_batch"] > 1 else self._answers([data])[0]


if __name__ == "__main__":
    server = Server()
    server.append_worker(
        Model,
        num=_GIVEN["workers"],
        max_batch_size=_GIVEN["max_batch"],
        max_wait_time=_GIVEN["delay_ms"],
    )
    server.run()
