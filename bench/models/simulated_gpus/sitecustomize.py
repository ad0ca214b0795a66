"""In every Python process of a server on simulated GPUs: what a driver would do for it.

On PYTHONPATH it runs before anything else. ``BENCH_SIMULATED_GPUS`` is the file of the GPUs. A
program that asks NVML gets them beneath the unmodified pynvml; a program that CUDA_VISIBLE_DEVICES
gives an instance is seen to run on it, and ends at once when there is no such instance.
"""

import os
import sys
from pathlib import Path

ASKING = ("shunter.plugins.control.controller", "shunter.allocator.devices.names")


def _begin(path: Path) -> None:
    from shunter.allocator.devices.simulated import driver
    from shunter.allocator.devices.simulated.state import SimProcess, State
    from shunter.allocator.devices.simulated.store import Store

    if set(ASKING) & set(sys.orig_argv):
        from shunter.allocator.devices.simulated.library import SimulatedLibrary, use

        use(SimulatedLibrary(Store(path, State())))
    device = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if device.startswith("MIG-") and "SHUNTER_SLOT" in os.environ:
        with Store(path, State()).change() as state:
            driver.vacate(state, device, os.getpid())  # a program may start itself anew
            try:
                driver.occupy(state, device, SimProcess(os.getpid(), 256, is_real=True))
            except KeyError:
                print(f"no such device: {device}", flush=True)
                os._exit(1)


if named := os.environ.get("BENCH_SIMULATED_GPUS"):
    _begin(Path(named))
