"""TorchServe's archives and workers, without TorchServe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from shunter.plugins.torchserve.archives import UnpackedModel, unpack
from shunter.plugins.torchserve.worker_client import ModelWorker


class TorchServeRuntime:
    """The :class:`shunter.plugins.host.WorkerRuntime` of TorchServe."""

    def unpack(self, archive: Path, folder: Path) -> UnpackedModel:
        """See the protocol."""
        return unpack(archive, folder)

    def worker(
        self,
        model: UnpackedModel,
        *,
        threads: int,
        cores: Sequence[int] | None = None,
        batch: int = 1,
        variables: Mapping[str, str] | None = None,
        load_s: float | None = None,
    ) -> ModelWorker:
        """See the protocol."""
        timeout = {} if load_s is None else {"timeout_s": load_s}
        return ModelWorker(
            model, threads=threads, cores=cores, batch=batch, variables=variables, **timeout
        )
