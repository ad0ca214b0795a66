"""What requests take from their model where they say nothing. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from shunter.batching.wire import Header


@dataclass(frozen=True)
class Defaults:
    """What requests take from their model; the rules are those of its requests over HTTP."""

    priority: int = 0
    """Class of those that name none."""
    slo_ns: int = 0
    """Deadline of strict ones that have none, after their arrival. 0: none."""
    timeout_ns: int = 0
    """Latest deadline of all, after their arrival. 0: none."""

    def terms(self, header: Header, now_ns: int) -> tuple[int, int]:
        """Class and deadline of a request that arrives now; a deadline of 0: none."""
        priority = min(header.priority, 2) - 1 if header.priority else self.priority
        budget = header.deadline_us * 1000 or (0 if priority else self.slo_ns)
        if self.timeout_ns:
            budget = min(budget or self.timeout_ns, self.timeout_ns)
        return priority, now_ns + budget if budget else 0
