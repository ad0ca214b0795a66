"""The policy that only hands on what the operator set: a slot's commands out of the settings.

Pure: settings and a slot's identity in, the numbers of the control page out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from shunter.batching.page.layout import CLASSES
from shunter.batching.page.records import (
    Commands,
    GroupCommands,
    SlotCommands,
    SlotIdentity,
)
from shunter.batching.page.slices import Slice
from shunter.plugins.control.observed import GroupShare, Wanted
from shunter.plugins.control.settings import ModelSettings


def fixed_commands(
    settings: ModelSettings, identity: SlotIdentity, classes: Sequence[int] = ()
) -> Commands:
    """Commands for a slot. No latency is told: the server fits its own.

    ``classes``: for each worker group a mask of the classes that it takes, 0: all of them. Raises
    ValueError when a class would be kept away from every group of the model that takes it.
    """
    for number, name in enumerate(CLASSES):
        masks = [_at(classes, group, 0) for group in range(identity.group_count)]
        takers = [group for group, mask in enumerate(masks) if not mask or mask >> number & 1]
        if takers and not any(_at(settings.weights[number], group, 1) for group in takers):
            raise ValueError(
                f"models.{identity.model_name}.weights.{name} is 0 for all "
                f"{len(takers)} worker groups that take it; allowed: at least one above 0"
            )
    registered_us = identity.registered_max_wait_us
    wanted_ms = settings.max_wait_ms
    slot = SlotCommands(
        alpha_millionths=round(settings.alpha * 1e6),
        threshold_cap_milli=round(settings.threshold_cap * 1e3),
        threshold_fixed_milli=round(settings.threshold * 1e3),
        max_wait_us=registered_us if wanted_ms is None else min(registered_us, _us(wanted_ms)),
        mix_classes=int(settings.mix_classes),
        ageing_us=_us(settings.ageing_ms),
        ahead_batches=settings.ahead,
        admission=int(settings.admission),
        margin_us=_us(settings.margin_ms),
    )
    return Commands(slot, tuple(_group(settings, g) for g in range(identity.group_count)))


def with_configuration(commands: Commands, wanted: Wanted | None) -> Commands:
    """The same commands, asking for a configuration."""
    if wanted is None:
        return commands
    slot = replace(
        commands.slot,
        wanted_request=wanted.request,
        wanted_groups=len(wanted.groups),
        wanted_pin=int(wanted.pin),
    )
    groups = list(commands.groups)
    groups += [GroupCommands()] * (len(wanted.groups) - len(groups))
    for i, group in enumerate(wanted.groups):
        where = wanted.slices[i] if i < len(wanted.slices) else Slice()
        groups[i] = replace(
            groups[i],
            wanted_instances=group.instances,
            wanted_threads=group.threads,
            wanted_batch=group.batch,
            wanted_cpus=where.cpus,
            wanted_device=where.device,
        )
    return Commands(slot, tuple(groups))


def with_shares(commands: Commands, shares: Sequence[GroupShare]) -> Commands:
    """The same commands, with the part of each class that the present groups get."""
    groups = list(commands.groups)
    for i, share in enumerate(shares[: len(groups)]):
        groups[i] = replace(groups[i], preference=share.preference, weight_milli=share.weight_milli)
    return Commands(commands.slot, tuple(groups))


def _us(milliseconds: float) -> int:
    return round(milliseconds * 1e3)


def _group(settings: ModelSettings, group: int) -> GroupCommands:
    weights = [_at(of_class, group, 1) for of_class in settings.weights]
    return GroupCommands(
        command_cap=_at(settings.caps, group, 0),
        # A tiny share must not become 0, which means never.
        weight_milli=(_milli(weights[0]), _milli(weights[1])),
        preference=(
            _at(settings.preferences[0], group, 0),
            _at(settings.preferences[1], group, 0),
        ),
    )


def _milli(weight: float) -> int:
    return max(1, round(weight * 1e3)) if weight > 0 else 0


def _at(values: tuple[Any, ...], index: int, default: Any) -> Any:
    return values[index] if index < len(values) else default
