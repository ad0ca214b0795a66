"""Simulated GPUs beneath the unmodified pynvml."""

from contextlib import contextmanager

import pytest

from shunter.allocator.devices.mig import gpus, nvml_started
from shunter.allocator.devices.reconfiguration import Reconfiguration
from shunter.allocator.devices.simulated import driver
from shunter.allocator.devices.simulated.library import SimulatedLibrary, installed
from shunter.allocator.devices.simulated.state import SimProcess, State
from shunter.allocator.devices.simulated.store import Store


class Machine:
    """Simulated GPUs, and what tests do to them behind NVML's back."""

    def __init__(self, store, folder):
        self.store, self.folder = store, folder
        self.slept = []

    @property
    def gpu(self):
        return gpus()[0]

    def controller(self, tenants=None, **options):
        options = {"sleep": self.slept.append, "patience_s": 0} | options
        return Reconfiguration(self.gpu, self.folder, tenants, **options)

    def faults(self, *faults):
        with self.store.change() as state:
            state.faults[:] = faults

    def reboot(self):
        with self.store.change() as state:
            driver.reboot(state)

    def occupy(self, uuid, pid):
        with self.store.change() as state:
            driver.occupy(state, uuid, SimProcess(pid, 100))

    def vacate(self, uuid, pid):
        with self.store.change() as state:
            driver.vacate(state, uuid, pid)


@contextmanager
def _machine(folder, *models, path=None):
    store = Store(path, State.of(models or ["a100-40gb"]))
    with installed(SimulatedLibrary(store)), nvml_started():
        yield Machine(store, folder)


@pytest.fixture
def machine_with():
    """Makes a machine with these GPUs, for as long as a block takes."""
    return _machine


@pytest.fixture
def machine(tmp_path):
    """One with an A100 of 40 GB, MIG on, no instance."""
    with _machine(tmp_path / "state") as found:
        yield found
