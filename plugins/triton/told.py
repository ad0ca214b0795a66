"""What the backend is told of a model version, from what the control page says. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from shunter.batching.page.layout import Claims
from shunter.nic_frontend.server.model_policy import Policy
from shunter.plugins.triton.layout import CLAIMS_UNREAD


@dataclass(frozen=True)
class Told(Policy):
    """Numbers to decide by, and who may say that he is strict."""

    generation: int = 0
    """Of its workers; what was learnt of others is forgotten."""
    claims: int = Claims.ALL
    strict_key: tuple[int, ...] = (0, 0, 0, 0)
    """SHA-256 of the secret that :attr:`Claims.WITH_KEY` asks for."""


def told_of(
    policy: Policy, generation: int, claims: int, strict_key: Sequence[int], *, guarded: bool
) -> Told:
    """``claims``: of the page; while that says nothing nobody may claim anything, if the settings
    may forbid it, ``guarded``."""
    if claims == Claims.UNKNOWN:
        claims = CLAIMS_UNREAD if guarded else Claims.ALL
    return Told(
        **asdict(policy), generation=generation, claims=claims, strict_key=tuple(strict_key)
    )
