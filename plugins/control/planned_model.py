"""What is remembered about a model whose configuration follows its load."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from shunter.allocator.planning.configuration import Configuration, layout, with_ceiling
from shunter.allocator.planning.estimator import BatchSizeEstimator
from shunter.allocator.planning.latency_table import LatencyTable, Memory
from shunter.allocator.planning.optimizer import (
    Choice,
    NoConfiguration,
    minimise_latency,
    spread_over,
)
from shunter.allocator.planning.profile import Profile
from shunter.allocator.planning.profile_table import latency_table, memory_of
from shunter.allocator.planning.sharing import Demand
from shunter.batching.page.slices import Slice
from shunter.plugins.control.observed import Wanted
from shunter.plugins.control.settings import ConfigurationSettings

LOGGER = logging.getLogger("shunter.reconfiguration")
MOST_RETURNS, LONG = 5, 4
"""After n returns in a row the next one waits for 2**n time-outs; four times as long forgives."""


@dataclass
class PlannedModel:
    """A slot's load, what is known of its latency, and the changes that were made."""

    key: tuple[str, str]
    estimator: BatchSizeEstimator = field(default_factory=lambda: BatchSizeEstimator(1, 0))
    profile: Profile | None = None
    ceiling: int = 0
    """Largest batch of one instance, as registered."""
    table: LatencyTable = field(init=False)
    """Up to the ceiling."""
    memory: Memory = field(init=False)
    target: Configuration | None = None
    """What it shall run, until it does."""
    places: tuple[Slice, ...] = ()
    """Of the target's groups; empty: wherever they like."""
    needs: float = 0.0
    """Bytes of the instances of the target, or of the last one."""
    request: int = 0
    asked_ns: int = 0
    failures: int = 0
    not_before_ns: int = 0
    wanted: Wanted | None = None
    pinned: bool | None = None
    """Whether its workers were told to keep cores; None before the first change of ours serves."""
    left: list[tuple[int, int]] = field(default_factory=list)
    """Layout of the configuration before the present one."""
    changed_ns: int = 0
    returns: int = 0
    """How often in a row it went back to the one before."""
    choices: dict[tuple[tuple[int, ...], int, float], Choice] = field(default_factory=dict)
    """Optimal configurations by ⟨T, B⟩ and the number of instances that memory allows."""
    complaint: str = ""

    def use(self, profile: Profile, ceiling: int) -> None:
        """Take a profile and the registered batch size; a change that is under way goes on."""
        if profile is self.profile and ceiling == self.ceiling:
            return
        self.profile, self.ceiling = profile, ceiling
        self.table = latency_table(profile).capped(ceiling)
        self.memory = memory_of(profile.cells.values())
        self.choices.clear()

    def tune(self, settings: ConfigurationSettings) -> None:
        """Let the estimator go by these settings.

        The batch of all instances together is what it follows, at most a full one on every core.
        """
        assert self.profile is not None
        self.estimator.tune(
            round(settings.timeout_s * 1e9),
            largest=self.table.batch * self.profile.provenance.cores,
            alpha=settings.alpha,
            window=settings.window,
        )

    @property
    def demand(self) -> Demand:
        """What it asks for when the cores are shared out."""
        # A model without load still wants to be soon for the next request.
        weight = max(self.estimator.depth, 0.1)
        return Demand(self.table, self.estimator.current, weight)

    def best(self, nodes: tuple[int, ...], budget: float, batch: int | None = None) -> Choice:
        """The optimal configuration on these cores with so many bytes for the new instances.

        What they cannot hold at once runs in several rounds: then the best one for a round.
        ``batch``: requests at once; by default as the load asks for.
        """
        batch = batch or self.estimator.current
        while True:
            try:
                return self._best(nodes, batch, budget)
            except NoConfiguration:
                if batch == 1:
                    raise
                batch //= 2

    def _best(self, nodes: tuple[int, ...], batch: int, budget: float) -> Choice:
        memory = replace(self.memory, budget=budget)
        key = nodes, batch, min(sum(nodes), memory.instances(batch))
        if key not in self.choices:
            self.choices[key] = minimise_latency(self.table, nodes, batch, memory)
        return self.choices[key]

    def fbr(self, cores: int) -> float:
        """Share of the host's memory bandwidth that it wants on so many cores; 0: not known."""
        return (self.profile and self.profile.bandwidth(cores)) or 0.0

    def bytes_of(self, instances: int) -> float:
        """Memory of so many instances with the batch that the load asks for."""
        return instances * self.memory.instance + self.estimator.current * self.memory.request

    def capped(self, groups: Configuration) -> Configuration:
        """These groups with caps as large as they are good for, at most the registered one."""
        return tuple(
            replace(g, batch=self.table.efficient(g.threads, g.batch))
            for g in with_ceiling(groups, self.ceiling)
        )

    def present(self, threads: Sequence[int], cores: int, batch: int) -> Choice | None:
        """What instances with these threads are expected to do; None when nobody can say."""
        # Who leaves the threads to torch takes all cores; several of them fight for them.
        if not threads or (0 in threads and len(threads) > 1):
            return None
        try:
            return spread_over(self.table, [t or cores for t in threads], batch)
        except NoConfiguration:
            return None

    def may_go_to(self, groups: Configuration, timeout_s: float, now_ns: int) -> bool:
        """Going back and forth with a load that comes and goes gets rarer and rarer."""
        if layout(groups) != self.left:
            return True
        stayed_ns = now_ns - self.changed_ns
        hold_ns = round(timeout_s * 1e9) * 2**self.returns
        if stayed_ns > LONG * hold_ns:
            self.returns = 0
        return stayed_ns >= hold_ns

    def ask(self, present: Configuration, pin: bool, now_ns: int) -> Wanted:
        """Turn the target into what is wanted."""
        assert self.target is not None
        if layout(self.target) != layout(present):
            back = layout(self.target) == self.left
            self.returns = min(self.returns + 1, MOST_RETURNS) if back else 0
            self.left, self.changed_ns = layout(present), now_ns
        self.request += 1
        self.asked_ns = now_ns
        self.wanted = Wanted(self.request, self.target, pin and not self.places, self.places)
        self.target, self.places = None, ()
        return self.wanted

    def fail(self, timeout_s: float, now_ns: int) -> float:
        """Wait before the next attempt, longer each time; seconds."""
        self.failures = min(self.failures + 1, 6)
        pause_s = timeout_s * 2**self.failures
        self.not_before_ns = now_ns + round(pause_s * 1e9)
        return pause_s

    def forget_target(self) -> None:
        """It stays as it is."""
        self.target, self.places = None, ()

    def complain(self, text: str) -> None:
        """Log a problem once, not at every time-out."""
        if text != self.complaint:
            self.complaint = text
            LOGGER.warning("%s", text)
