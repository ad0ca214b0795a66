"""What an error of NVML means here, and what to do about it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

_ADVICE = {
    1: "the library was not started; this is a fault of Shunter",
    3: "this GPU, its driver or this virtual machine has no MIG, or MIG is off: switch it on with "
    "`nvidia-smi -i {gpu} -mig 1` while nothing uses the GPU, or do without instances",
    4: "this user may not: run as root, or give access to "
    "/proc/driver/nvidia/capabilities/mig/config (in containers NVIDIA_MIG_CONFIG_DEVICES=all)",
    9: "the driver is not loaded: look at `nvidia-smi` and `dmesg`",
    10: "the driver took too long: look at `dmesg`, then try again",
    12: "this machine has no NVIDIA driver (libnvidia-ml.so.1)",
    13: "the driver is older than MIG needs: install 450.80 or later",
    15: "the GPU does not answer any more: look at `dmesg` for Xid, then reset it or start the "
    "machine again",
    16: "the GPU must be reset first: `nvidia-smi -i {gpu} --gpu-reset` while nothing uses it",
    18: "the driver was updated while it was loaded: load it again, or start the machine again",
    20: "the driver has no memory left: end other programs of the GPU",
    27: "the GPU is not ready yet: try again in a moment",
    999: "the driver does not say why: look at `dmesg`; after a change of instances try again",
}
_AT = {
    ("create", 2): "the driver does not know this place: list the places with `shunter devices`, "
    "and change nothing with other programs meanwhile",
    ("create", 19): "another program holds the GPU: end profilers and monitors (nsys, dcgm, nvsm), "
    "then try again",
    ("create", 23): "something else lies there, or there are as many of this profile as can be: "
    "has another program made instances? Look with `shunter devices`",
    ("open", 4): "this user may not: give access to /dev/nvidia{gpu}",
    ("destroy", 2): "it is gone already: has another program changed the instances?",
    ("destroy", 6): "it is gone already: has another program changed the instances?",
    ("destroy", 19): "it is still in use: end what runs on it",
}
"""By what was tried, where that makes a difference."""


class DeviceError(Exception):
    """Something about a GPU cannot be done; the message says what to do."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code
        """NVML's number, 0 when it is not NVML that refused."""


def explain(
    code: int, said: str, doing: str, kind: str = "", gpu: str = "", users: Sequence[int] = ()
) -> DeviceError:
    """The error to raise for what NVML answered.

    ``doing``: as in "create 3g@4:4 on GPU-1234"; ``kind``: create, destroy or nothing; ``gpu``: its
    index, for commands; ``users``: pids of what runs there.
    """
    advice = _AT.get((kind, code)) or _ADVICE.get(code) or "look at `nvidia-smi -q` and `dmesg`"
    who = f" (pids {', '.join(map(str, users))})" if users else ""
    told = said.rstrip(".")
    return DeviceError(f"cannot {doing}: {told}{who}; {advice.format(gpu=gpu or 'GPU')}", code)
