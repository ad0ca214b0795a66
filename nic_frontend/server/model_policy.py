"""What a model's requests take from it, and its numbers of the control page as the network front
end's policy. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from shunter.batching.page.records import Commands, GroupTelemetry, SlotIdentity


@dataclass(frozen=True)
class Defaults:
    """What requests take from their model; the rules are those of its requests over HTTP."""

    priority: int = 0
    """Class of those that name none."""
    slo_ns: int = 0
    """Deadline of strict ones that have none, after their arrival. 0: none."""
    timeout_ns: int = 0
    """Latest deadline of all, after their arrival. 0: none."""


class Runs(NamedTuple):
    """Of a packed function: its requests and answers are runs of bytes, of which the queue's sizes
    are the most."""

    rows: int
    """Most of a request."""
    least_request: int
    least_answer: int
    streamed: int = 0
    """1: answers come in parts, each of which is such a run."""
    idle_ns: int = 0
    """So long an answer in parts is kept while nobody asks for one."""


@dataclass(frozen=True)
class Policy:
    """Numbers of the dispatcher, ``batching/c/policy.h``; as built in, those of the JVM's path.

    Without a server nobody has said how long a request may be held back, so none is.
    """

    threshold: float = 0.0
    """Requests that are worth a batch; 0: what adapts."""
    alpha: float = 0.5
    threshold_cap: float = 1e9
    max_wait_ns: int = 0
    margin_ns: int = 2_000_000
    ageing_ns: int = 1_000_000_000
    fixed_ns: int = 0
    per_request_ns: int = 0
    slo_ns: int = 0
    ahead: int = 1
    mixes: int = 0
    admission: int = 0
    """1: what is predicted to be answered too late is refused when it comes."""


def policy_of(
    commands: Commands | None, identity: SlotIdentity, groups: Sequence[GroupTelemetry]
) -> Policy:
    """What the operator set for the model; the built-in policy while nobody said anything.

    The latency that it begins with is the one that the server has fitted for its own workers of the
    model, where nobody commanded one.
    """
    registered_ns = identity.registered_max_wait_us * 1000
    built_in = Policy(max_wait_ns=registered_ns, slo_ns=identity.slo_us * 1000)
    if commands is None:
        return built_in
    slot = commands.slot
    fixed_ns, per_request_ns = slot.latency_fixed_ns, slot.latency_per_request_ns
    fitted = next((group for group in groups if group.group_fitted), None)
    if not fixed_ns and not per_request_ns and fitted is not None:
        fixed_ns, per_request_ns = fitted.group_fixed_ns, fitted.group_per_request_ns
    return replace(
        built_in,
        threshold=slot.threshold_fixed_milli / 1e3,
        alpha=slot.alpha_millionths / 1e6,
        threshold_cap=max(1.0, slot.threshold_cap_milli / 1e3),
        max_wait_ns=min(registered_ns, slot.max_wait_us * 1000),
        margin_ns=slot.margin_us * 1000,
        ageing_ns=slot.ageing_us * 1000,
        fixed_ns=fixed_ns,
        per_request_ns=per_request_ns,
        ahead=slot.ahead_batches,
        mixes=int(slot.mix_classes),
        admission=slot.admission,
    )
