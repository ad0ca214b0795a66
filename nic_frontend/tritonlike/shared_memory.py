"""Regions of shared memory that a client in Triton's shape has registered."""

from __future__ import annotations

from typing import Any

from shunter.nic_frontend.tritonlike.errors import as_triton
from shunter.nic_frontend.tritonlike.shared_regions import RegionError, Regions


class SharedMemory:
    """What Triton's clients offer for shared memory."""

    def __init__(self) -> None:
        """None is registered."""
        self._regions = Regions()

    def register_system_shared_memory(
        self, name: str, key: str, byte_size: int, offset: int = 0, **_: Any
    ) -> None:
        """Let tensors lie in a region that tritonclient.utils.shared_memory has made."""
        try:
            self._regions.register(name, key, byte_size, offset)
        except RegionError as error:
            raise as_triton(error) from error

    def unregister_system_shared_memory(self, name: str = "", **_: Any) -> None:
        """Forget a region, or all."""
        try:
            self._regions.unregister(name)
        except RegionError as error:
            raise as_triton(error) from error

    def get_system_shared_memory_status(
        self, region_name: str = "", **_: Any
    ) -> list[dict[str, Any]]:
        """The registered regions."""
        try:
            found = self._regions.find(region_name)
        except RegionError as error:
            raise as_triton(error) from error
        return [
            {"name": r.name, "key": r.key, "offset": r.offset, "byte_size": r.byte_size}
            for r in found
        ]

    def unregister_cuda_shared_memory(self, name: str = "", **_: Any) -> None:
        """Nothing when all are meant, of which there are none."""
        if name:
            raise as_triton(RegionError(f"no CUDA region '{name}' is registered"))

    def get_cuda_shared_memory_status(self, region_name: str = "", **_: Any) -> list[Any]:
        """None."""
        self.unregister_cuda_shared_memory(region_name)
        return []
