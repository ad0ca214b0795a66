"""The ``shunter:`` section of a model that is about to be packed, checked as loading it does."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

from shunter.allocator.planning.configuration import ConfigurationError, parse_configuration
from shunter.batching.forming.spelling import hint
from shunter.plugins.host import HostError
from shunter.plugins.triton import archive_keys
from shunter.plugins.triton.pools import Pools

_FLAGS = ("auto", "resident", "retry")
_LARGEST_BATCH = 100_000
_LONGEST_SEGMENT_MS = 1000
_BOUNDARIES = ("modules", "fx")
_PREEMPTIBLE = ("boundaries", "drop", "segment_ms")


def check(config: Mapping[str, Any]) -> None:
    """Whether a server would take the section of a model's configuration. Raises HostError.

    What TorchServe's side and Triton's judge differently has to please both.
    """
    if "shunter" not in config:
        return
    section = _mapping("shunter", config["shunter"])
    archive_keys.check(SimpleNamespace(section=section))
    for key in _FLAGS:
        _check_flag(key, section.get(key))
    _check_numbers(section)
    _check_configuration(section)
    _mapping("shunter.environment", section.get("environment", {}))
    _check_preemptible(section.get("preemptible", False))
    Pools().has(section)
    # Who packs need not have torch, whose types they name.
    if "tensors" in section and find_spec("torch"):
        _check_tensors(section)


def _mapping(key: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise HostError(f'{key}: "{value}" is not a mapping')
    return value


def _check_flag(key: str, said: Any) -> None:
    if not (said is None or isinstance(said, bool)):
        raise HostError(f'shunter.{key}: "{said}"; allowed: true, false')


def _check_numbers(section: Mapping[str, Any]) -> None:
    slo = section.get("slo_ms")
    if slo is not None and not (_is_number(slo, int, float) and 0 < slo <= archive_keys.DAY_MS):
        raise HostError(
            f'shunter.slo_ms: "{slo}" is not a latency; allowed: milliseconds above 0 and at most '
            f"{archive_keys.DAY_MS}"
        )
    most = section.get("max_batch")
    if most is not None and not (_is_number(most, int) and 1 <= most <= _LARGEST_BATCH):
        raise HostError(
            f'shunter.max_batch: "{most}" is not a batch size; allowed: 1 to {_LARGEST_BATCH}'
        )


def _is_number(value: Any, *kinds: type) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool)


def _check_configuration(section: Mapping[str, Any]) -> None:
    if "groups" in section and "configuration" in section:
        raise HostError("shunter.groups and shunter.configuration: give one of them")
    if section.get("network") is not None and "tensors" not in section:
        raise HostError("shunter.network: it needs shunter.tensors, which says what is sent")
    for key in ("configuration", "network"):
        try:
            if section.get(key) is not None:
                parse_configuration(str(section[key]))
        except ConfigurationError as error:
            raise HostError(f"shunter.{key}: {error}") from error


def _check_preemptible(said: Any) -> None:
    if isinstance(said, bool) or said is None:
        return
    if not isinstance(said, Mapping):
        keys = ", ".join(_PREEMPTIBLE)
        raise HostError(
            f'shunter.preemptible: "{said}"; allowed: true, false or a mapping of {keys}'
        )
    for key in said:
        if key not in _PREEMPTIBLE:
            known = ", ".join(_PREEMPTIBLE) + hint(str(key), _PREEMPTIBLE)
            raise HostError(f"shunter.preemptible.{key} is not known; allowed: {known}")
    segment, kind = said.get("segment_ms", 1), said.get("boundaries", _BOUNDARIES[0])
    if not (_is_number(segment, int, float) and 0 < segment <= _LONGEST_SEGMENT_MS):
        raise HostError(
            f'shunter.preemptible.segment_ms: "{segment}"; allowed: milliseconds above 0 and at '
            f"most {_LONGEST_SEGMENT_MS}"
        )
    if kind not in _BOUNDARIES:
        near = hint(str(kind), _BOUNDARIES)
        raise HostError(
            f'shunter.preemptible.boundaries: "{kind}"; allowed: {", ".join(_BOUNDARIES)}{near}'
        )
    _check_flag("preemptible.drop", said.get("drop", False))


def _check_tensors(section: Mapping[str, Any]) -> None:
    from shunter.handlers.queue.tensor_config import (
        TensorConfigError,
        bodies_config,
        is_of_bodies,
        tensor_config,
    )

    try:
        (bodies_config if is_of_bodies(section) else tensor_config)(section)
    except TensorConfigError as error:
        raise HostError(f"shunter.{error}") from error
