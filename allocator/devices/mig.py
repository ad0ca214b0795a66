"""One GPU and its instances, through NVML. A thin shell: what is legal is in ``geometry``.

Everything is read anew after each change, for numbers of what was destroyed stand for nothing.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import pynvml

from shunter.allocator.devices.advice import DeviceError, explain
from shunter.allocator.devices.geometry import Layout, Placement, Profile, Profiles, text_of
from shunter.allocator.devices.instances import GpuInstance, Part
from shunter.allocator.devices.profiles import HOLES, read_profiles

Found = TypeVar("Found")
LOOKS = 5
"""How often is read what changes meanwhile."""
_GONE = (pynvml.NVML_ERROR_INVALID_ARGUMENT, pynvml.NVML_ERROR_NOT_FOUND)
"""What NVML answers for an instance that was there a moment ago."""
_NO_PART = (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_NOT_SUPPORTED)
"""What it answers for a number that no MIG device has; there are holes."""


class MigGpu:
    """A GPU that may be parted. NVML must have been started."""

    def __init__(self, index: int, nvml: Any = pynvml) -> None:
        """``index``: in NVML's order. Raises DeviceError where it does not answer."""
        self.index, self._nvml = index, nvml
        with self._told(f"open GPU {index}", "open"):
            self._handle = nvml.nvmlDeviceGetHandleByIndex(index)
            self.uuid = str(nvml.nvmlDeviceGetUUID(self._handle))
            self.name = str(nvml.nvmlDeviceGetName(self._handle))
        self._profiles: dict[int, Profile] | None = None

    @property
    def profiles(self) -> Profiles:
        """What the GPU lists; empty when it has no MIG."""
        if self._profiles is None:
            with self._told(f"read the profiles of {self.uuid}"):
                found = read_profiles(self._handle, self._nvml)
            self._profiles = {profile.id: profile for profile in found}
        return tuple(self._profiles.values())

    def mode(self) -> tuple[bool, bool] | None:
        """Whether MIG is on, and whether it will be after a reset; None: the GPU has no MIG."""
        try:
            now, later = self._nvml.nvmlDeviceGetMigMode(self._handle)
        except self._nvml.NVMLError as error:
            if error.value == self._nvml.NVML_ERROR_NOT_SUPPORTED:
                return None
            raise self._explained(error, f"read the MIG mode of {self.uuid}") from None
        return bool(now), bool(later)

    def check_ready(self) -> None:
        """Raises DeviceError when instances cannot be made now."""
        mode = self.mode()
        if mode is None:
            raise DeviceError(f"{self.name} ({self.uuid}) has no MIG: it serves as a whole", 3)
        if not mode[0]:
            pending = "waits for a reset of the GPU" if mode[1] else "is off"
            command = "--gpu-reset" if mode[1] else "-mig 1"
            raise DeviceError(
                f"MIG of {self.uuid} {pending}: as root and while nothing uses the GPU run "
                f"`nvidia-smi -i {self.index} {command}`; Shunter never does so itself",
                3,
            )

    def memory(self) -> tuple[int, int]:
        """Bytes in all, and in use."""
        with self._told(f"read the memory of {self.uuid}"):
            found = self._nvml.nvmlDeviceGetMemoryInfo(self._handle)
        return int(found.total), int(found.used)

    def pids(self) -> tuple[int, ...]:
        """Processes that run on the GPU as a whole."""
        return self._pids(self._handle)

    # ---- instances

    def instances(self) -> tuple[GpuInstance, ...]:
        """In the order of their places. Raises DeviceError for who may not list them."""
        return self._steady(self._instances)

    def _instances(self) -> tuple[GpuInstance, ...]:
        parts = self._parts()
        found = []
        for profile in self.profiles:
            for handle in self._handles(profile):
                with self._told(f"read an instance of {self.uuid}"):
                    info = self._nvml.nvmlGpuInstanceGetInfo(handle)
                place = Placement(info.placement.start, info.placement.size, profile.id)
                mine = tuple(parts.get(info.id, ()))
                found.append(GpuInstance(info.id, profile.name, profile.compute, place, mine))
        return tuple(sorted(found, key=lambda each: each.placement or Placement(0, 0, 0)))

    def seen(self) -> tuple[GpuInstance, ...]:
        """The same for who may not list them: those with a MIG device, without their places."""
        try:
            return self.instances()
        except DeviceError as error:
            if error.code != self._nvml.NVML_ERROR_NO_PERMISSION:
                raise
        found = []
        for number, parts in self._steady(self._parts).items():
            compute = sum(part.compute for part in parts)
            found.append(GpuInstance(number, f"{compute}g", compute, None, tuple(parts)))
        return tuple(found)

    def layout(self) -> tuple[Layout, Layout]:
        """What is there, and the part of it that is not one whole MIG device each."""
        found = self.instances()
        return (
            frozenset(each.placement for each in found if each.placement),
            frozenset(each.placement for each in found if each.placement and not each.is_whole),
        )

    def create(self, place: Placement) -> None:
        """Make an instance with one MIG device that has everything in it."""
        doing = f"create {text_of([place], self.profiles)} on {self.uuid}"
        known = self._known(place)
        at = self._nvml.c_nvmlGpuInstancePlacement_t(place.start, place.size)
        with self._told(doing, "create"):
            made = self._nvml.nvmlDeviceCreateGpuInstanceWithPlacement(
                self._handle, place.profile, ctypes.byref(at)
            )
            self._nvml.nvmlGpuInstanceCreateComputeInstance(made, self._whole(made, known))

    def destroy(self, place: Placement) -> None:
        """End an instance and its MIG devices; nothing happens when it is gone already."""
        doing = f"destroy {text_of([place], self.profiles)} on {self.uuid}"
        handle, number = self._steady(lambda: self._find(place))
        if handle is None:
            return
        try:
            for compute in self._computes(handle, self._known(place)):
                self._nvml.nvmlComputeInstanceDestroy(compute)
            self._nvml.nvmlGpuInstanceDestroy(handle)
        except self._nvml.NVMLError as error:
            raise self._explained(error, doing, "destroy", self._pids_of(number)) from None

    def _find(self, place: Placement) -> tuple[Any, int]:
        for handle in self._handles(self._known(place)):
            with self._told(f"read an instance of {self.uuid}"):
                info = self._nvml.nvmlGpuInstanceGetInfo(handle)
            if info.placement.start == place.start:
                return handle, info.id
        return None, 0

    # ---- how NVML is asked

    def _known(self, place: Placement) -> Profile:
        for profile in self.profiles:
            if profile.id == place.profile:
                return profile
        raise DeviceError(f"{self.uuid} has no profile with the id {place.profile}", 2)

    def _handles(self, profile: Profile) -> list[Any]:
        found = (self._nvml.c_nvmlGpuInstance_t * profile.most)()
        count = ctypes.c_uint()
        with self._told(f"list the instances of {self.uuid}"):
            ask = self._nvml.nvmlDeviceGetGpuInstances
            ask(self._handle, profile.id, found, ctypes.byref(count))
        return list(found[: count.value])

    def _whole(self, instance: Any, known: Profile) -> int:
        """Id of the profile of the compute instance that takes an instance as a whole."""
        for info in self._compute_profiles(instance):
            if info.sliceCount == known.compute:
                return int(info.id)
        raise self._nvml.NVMLError(self._nvml.NVML_ERROR_NOT_FOUND)

    def _computes(self, instance: Any, known: Profile) -> Iterator[Any]:
        for info in self._compute_profiles(instance):
            found = (self._nvml.c_nvmlComputeInstance_t * known.compute)()
            count = ctypes.c_uint()
            ask = self._nvml.nvmlGpuInstanceGetComputeInstances
            ask(instance, info.id, found, ctypes.byref(count))
            yield from found[: count.value]

    def _compute_profiles(self, instance: Any) -> Iterator[Any]:
        shared = self._nvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
        for index in range(self._nvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
            try:
                ask = self._nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo
                yield ask(instance, index, shared)
            except self._nvml.NVMLError as error:
                if error.value not in HOLES:  # It has not every size.
                    raise

    def _parts(self) -> dict[int, list[Part]]:
        """MIG devices by the number of their instance."""
        found: dict[int, list[Part]] = {}
        with self._told(f"list the MIG devices of {self.uuid}"):
            most = self._nvml.nvmlDeviceGetMaxMigDeviceCount(self._handle)
            for index in range(most):
                try:
                    ask = self._nvml.nvmlDeviceGetMigDeviceHandleByIndex
                    handle = ask(self._handle, index)
                except self._nvml.NVMLError as error:
                    if error.value not in _NO_PART:
                        raise
                    continue
                number = self._nvml.nvmlDeviceGetGpuInstanceId(handle)
                found.setdefault(number, []).append(self._part(handle))
        return found

    def _part(self, handle: Any) -> Part:
        memory = self._nvml.nvmlDeviceGetMemoryInfo(handle)
        return Part(
            number=self._nvml.nvmlDeviceGetComputeInstanceId(handle),
            uuid=str(self._nvml.nvmlDeviceGetUUID(handle)),
            compute=self._nvml.nvmlDeviceGetAttributes_v2(handle).computeInstanceSliceCount,
            memory_bytes=int(memory.total),
            used_bytes=int(memory.used),
            pids=self._pids(handle),
        )

    def _pids(self, handle: Any) -> tuple[int, ...]:
        try:
            found = self._nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle)
        except self._nvml.NVMLError as error:
            if error.value == self._nvml.NVML_ERROR_NOT_SUPPORTED:  # Some virtual machines.
                return ()
            raise self._explained(error, f"list the processes of {self.uuid}") from None
        return tuple(sorted(int(each.pid) for each in found))

    def _pids_of(self, number: int) -> tuple[int, ...]:
        """Who uses an instance, for what is told of an error: no reason to raise another one."""
        with suppress(DeviceError):
            return tuple(pid for part in self._parts().get(number, ()) for pid in part.pids)
        return ()

    def _steady(self, read: Callable[[], Found]) -> Found:
        """What is read when nothing of it goes meanwhile: others may change instances too."""
        for _ in range(LOOKS - 1):
            try:
                return read()
            except DeviceError as error:
                if error.code not in _GONE:
                    raise
        return read()

    @contextmanager
    def _told(self, doing: str, kind: str = "") -> Iterator[None]:
        """NVML's errors within become DeviceErrors."""
        try:
            yield
        except self._nvml.NVMLError as error:
            raise self._explained(error, doing, kind) from None

    def _explained(
        self, error: Any, doing: str, kind: str = "", users: tuple[int, ...] = ()
    ) -> DeviceError:
        return explain(error.value, str(error), doing, kind, str(self.index), users)


@contextmanager
def nvml_started(nvml: Any = pynvml) -> Iterator[Any]:
    """NVML, for as long as the block takes. Raises DeviceError where there is none."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise explain(error.value, str(error), "ask for GPUs") from None
    try:
        yield nvml
    finally:
        nvml.nvmlShutdown()


def each_gpu(
    read: Callable[[MigGpu], Found], nvml: Any = pynvml
) -> tuple[list[Found], dict[int, DeviceError]]:
    """What is read of each GPU that answers, in NVML's order; and of others why not, by index.

    Raises DeviceError where none answers. NVML must have been started.
    """
    try:
        count = nvml.nvmlDeviceGetCount()
    except nvml.NVMLError as error:
        raise explain(error.value, str(error), "list the GPUs") from None
    found, silent = [], {}
    for index in range(count):
        try:
            found.append(read(MigGpu(index, nvml)))
        except DeviceError as error:
            silent[index] = error
    if silent and not found:
        raise next(iter(silent.values()))
    return found, silent


def gpus(nvml: Any = pynvml) -> tuple[MigGpu, ...]:
    """Every GPU that answers, in NVML's order. NVML must have been started."""
    return tuple(each_gpu(lambda gpu: gpu, nvml)[0])
