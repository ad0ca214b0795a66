"""Where hot weights are: in memory of the host or of a device."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Protocol

from torch import nn

from shunter.handlers.weights.device_memory import DeviceMemory, Driver, Pinned
from shunter.handlers.weights.device_model import DeviceModel
from shunter.handlers.weights.files import WeightFile
from shunter.handlers.weights.hot import HotModel
from shunter.handlers.weights.hot_memory import HotMemory
from shunter.handlers.weights.sharing import data_of, share, store

logger = logging.getLogger("shunter.weights")


class Place(Protocol):
    """What models need of it."""

    reads_cold: bool
    """Whether a batch may begin while its weights are not there."""

    def model(self, modules: Sequence[nn.Module]) -> HotModel | DeviceModel | None:
        """Let the weights of a loaded model come and go; None: it has none that could.

        Raises OSError: the host has no room for the cold copy.
        """

    def trim(self) -> None:
        """Let others have the memory that nobody uses."""

    def close(self) -> None:
        """All models have been closed."""


class Host:
    """Private memory over the shared cold copy, which is read as long as nothing has come."""

    reads_cold = True

    def __init__(self, folder: Path, budget: int, copies: Executor) -> None:
        """``folder``: of the files of weights."""
        self.memory = HotMemory(budget)
        self._folder, self._copies = folder, copies

    def model(self, modules: Sequence[nn.Module]) -> HotModel | None:
        """Its weights are the cold copy from now on."""
        found = share(modules, self._folder)
        if found is None:
            return None
        cold = data_of(found.file)
        hot = HotModel(found.weights, found.file.records, cold, self.memory, self._copies)
        return hot if hot.bytes else None  # of a frozen graph nothing can be moved

    def trim(self) -> None:
        """See Place."""
        self.memory.trim()

    def close(self) -> None:
        """See Place."""
        self.memory.close()


class OnDevice:
    """Memory of a device over the cold copy in the host, from which it is filled.

    Of a model that is not on the device all processes read the cold copy.
    """

    reads_cold = False

    def __init__(self, folder: Path, budget: int, copies: Executor, driver: Driver) -> None:
        """``folder``: of the files of weights."""
        self.memory = DeviceMemory(budget, driver)
        self._folder, self._copies = folder, copies

    def model(self, modules: Sequence[nn.Module]) -> DeviceModel | None:
        """Its weights are not on the device from now on."""
        driver = self.memory.driver
        found = store(modules, self._folder, driver.device)
        if found is None:
            share(modules, self._folder)
            return None
        pinned = self._pinned(found.file)
        cold = pinned.data if pinned else data_of(found.file)
        model = DeviceModel(
            found.weights, found.file.records, cold, self.memory, self._copies, modules
        )
        model.at_end = pinned.close if pinned else None
        self.trim()
        return model

    def _pinned(self, file: WeightFile) -> Pinned | None:
        try:
            return self.memory.driver.pinned(file)
        except OSError as error:
            logger.warning("Weights go to the device by way of a buffer: %s", error)
            return None

    def trim(self) -> None:
        """See Place."""
        self.memory.trim()

    def close(self) -> None:
        """See Place."""
