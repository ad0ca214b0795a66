"""Workers that are one process: see ``batching/c/sets/sets.h``."""

from __future__ import annotations

from shunter.nic_frontend.library import require
from shunter.nic_frontend.server.structures import declare


class WorkerSets:
    """Sets of workers behind which there is one process, of all loops together: as many batches at
    once as ``batching/c/sets/sets.h`` says, whichever functions they are of."""

    def __init__(self) -> None:
        """Raises LibraryError."""
        self._library = require()
        declare(self._library)
        self.handle = self._library.shunter_sets_new()

    def close(self) -> None:
        """When no data path uses them any more."""
        self._library.shunter_sets_free(self.handle)
