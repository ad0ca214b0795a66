"""The GPUs that can be simulated, by NVIDIA's tables of their instances. Pure.

A GPU that is there is asked for its own lists; these serve simulation and tests only. All of them
have the same places on eight memory slices. Sizes in GiB move a little with the driver's version.
"""

from __future__ import annotations

from dataclasses import dataclass

from shunter.allocator.devices.geometry import Profile, Profiles

PLACES = (  # id, index of NVML, compute slices, memory slices, most, starts; special or not
    (19, 0, 1, 1, 7, (0, 1, 2, 3, 4, 5, 6), True),
    (20, 7, 1, 1, 1, (0, 1, 2, 3, 4, 5, 6), False),  # with the media engines
    (15, 9, 1, 2, 4, (0, 2, 4, 6), False),  # with twice the memory
    (14, 1, 2, 2, 3, (0, 2, 4), True),
    (9, 2, 3, 4, 2, (0, 4), True),
    (5, 3, 4, 4, 1, (0,), True),
    (0, 4, 7, 8, 1, (0,), True),
)


@dataclass(frozen=True)
class Model:
    """A GPU as a product."""

    product: str
    memory_mb: int
    names: tuple[str, ...]
    """Of its profiles, in the order of the places."""
    multiprocessors: tuple[int, ...]
    memory_gib: tuple[float, ...]
    keeps_mig: bool
    """Whether MIG stays on when the machine starts again: on Ampere, not on later ones."""

    @property
    def profiles(self) -> Profiles:
        """What it would list."""
        columns = zip(PLACES, self.names, self.multiprocessors, self.memory_gib, strict=True)
        return tuple(
            Profile(
                id=number,
                name=name,
                compute=compute,
                places=tuple((start, size) for start in starts),
                most=most,
                is_plain=is_plain,
                index=index,
                multiprocessors=multiprocessors,
                memory_mb=round(gib * 1024),
            )
            for (
                (number, index, compute, size, most, starts, is_plain),
                name,
                multiprocessors,
                gib,
            ) in columns
        )


def _names(small: int, double: int, half: int, whole: int) -> tuple[str, ...]:
    return (
        f"1g.{small}gb",
        f"1g.{small}gb+me",
        f"1g.{double}gb",
        f"2g.{double}gb",
        f"3g.{half}gb",
        f"4g.{half}gb",
        f"7g.{whole}gb",
    )


_A100 = (14, 14, 14, 28, 42, 56, 98)
_H100 = (16, 16, 26, 32, 60, 64, 132)

MODELS = {
    "a100-40gb": Model(
        "NVIDIA A100-SXM4-40GB",
        40960,
        _names(5, 10, 20, 40),
        _A100,
        (4.75, 4.75, 9.75, 9.75, 19.62, 19.62, 39.5),
        keeps_mig=True,
    ),
    "a100-80gb": Model(
        "NVIDIA A100-SXM4-80GB",
        81920,
        _names(10, 20, 40, 80),
        _A100,
        (9.5, 9.5, 19.5, 19.5, 39.25, 39.25, 78.75),
        keeps_mig=True,
    ),
    "h100-80gb": Model(
        "NVIDIA H100 80GB HBM3",
        81559,
        _names(10, 20, 40, 80),
        _H100,
        (9.75, 9.75, 19.62, 19.62, 39.5, 39.5, 79.25),
        keeps_mig=False,
    ),
    "h200-141gb": Model(
        "NVIDIA H200",
        143771,
        _names(18, 35, 71, 141),
        _H100,
        (16.0, 16.0, 32.25, 32.25, 69.5, 69.5, 139.75),
        keeps_mig=False,
    ),
}
