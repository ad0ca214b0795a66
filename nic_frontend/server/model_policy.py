"""What a model's requests take from it, and its numbers of the control page as the network front
end's policy. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shunter.batching.page.records import Commands, GroupTelemetry


@dataclass(frozen=True)
class Defaults:
    """What requests take from their model; the rules are those of its requests over HTTP."""

    priority: int = 0
    """Class of those that name none."""
    slo_ns: int = 0
    """Deadline of strict ones that have none, after their arrival. 0: none."""
    timeout_ns: int = 0
    """Latest deadline of all, after their arrival. 0: none."""


@dataclass(frozen=True)
class Policy:
    """Numbers of the release rule; see :mod:`shunter.batching.forming.release`."""

    threshold: float = 1.0
    max_wait_ns: int = 0
    margin_ns: int = 2_000_000
    ageing_ns: int = 1_000_000_000
    fixed_ns: int = 0
    per_request_ns: int = 0
    ahead: int = 1


def policy_of(commands: Commands | None, groups: Sequence[GroupTelemetry]) -> Policy:
    """What the operator set for the model; the built-in policy while nobody said anything.

    Without a fixed threshold it is 1: a free worker takes what waits, and batches form while all
    are busy. The adaptive one of the page follows the requests of the other front end. A latency
    that nobody commanded is the one that the server has fitted for its own workers of the model;
    what they do besides only makes a batch leave sooner.
    """
    if commands is None:
        return Policy()
    slot = commands.slot
    fixed_ns, per_request_ns = slot.latency_fixed_ns, slot.latency_per_request_ns
    fitted = next((group for group in groups if group.group_fitted), None)
    if not fixed_ns and not per_request_ns and fitted is not None:
        fixed_ns, per_request_ns = fitted.group_fixed_ns, fitted.group_per_request_ns
    threshold = min(slot.threshold_fixed_milli, slot.threshold_cap_milli) / 1e3
    return Policy(
        threshold=max(1.0, threshold),
        max_wait_ns=slot.max_wait_us * 1000,
        margin_ns=slot.margin_us * 1000,
        ageing_ns=slot.ageing_us * 1000,
        fixed_ns=fixed_ns,
        per_request_ns=per_request_ns,
        ahead=slot.ahead_batches,
    )
