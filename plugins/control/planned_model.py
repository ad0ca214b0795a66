"""What is remembered about models whose configuration follows their load, and their joint targets.

The cores are shared out by :mod:`shunter.allocator.planning.sharing`; memory goes to those first
that give cores back, because they are changed first.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
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
from shunter.allocator.planning.serving_cost import ServingCost
from shunter.allocator.planning.sharing import Demand, share_cores
from shunter.batching.page.slices import Slice
from shunter.plugins.control.observed import Observed, Wanted
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
    profiled: LatencyTable = field(init=False)
    """Up to the ceiling."""
    table: LatencyTable = field(init=False)
    """The same with what serving adds."""
    cost: ServingCost = field(default_factory=ServingCost)
    arrivals: int = 0
    """Requests offered when it was last looked at."""
    answered: tuple[int, int] = (0, 0)
    """Batches and requests of the group that was."""
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
        self.profiled = latency_table(profile).capped(ceiling)
        self._charge()
        self.memory = memory_of(profile.cells.values())

    def heed(self, seen: Observed, gain: float) -> bool:
        """See what serving adds to the profile; whether it is time to plan with that."""
        if seen.arrivals == self.arrivals:
            return False  # idle: its groups need not be read
        self.arrivals = seen.arrivals
        group = seen.fitted
        if group is None:
            return False
        before, self.answered = self.answered, (group.group_batches, group.group_requests)
        batches, requests = (now - then for now, then in zip(self.answered, before, strict=True))
        if batches <= 0 or requests < batches:  # counters of new workers
            return False
        assert self.profile is not None
        size = min(round(requests / batches), self.profiled.batch)
        profiled_ms = self.profiled.of(group.group_threads or self.profile.provenance.cores, size)
        served_ms = (group.group_fixed_ns + size * group.group_per_request_ns) / 1e6
        if not self.cost.heed(size, profiled_ms, served_ms, gain / 4):
            return False
        self._charge()
        return True

    def _charge(self) -> None:
        self.table = self.cost.charged(self.profiled)
        self.choices.clear()

    def tune(self, settings: ConfigurationSettings) -> None:
        """Let the estimator go by these settings.

        The batch of all instances together is what it follows, at most a full one on every core.
        """
        assert self.profile is not None
        self.estimator.tune(
            round(settings.timeout_s * 1e9),
            largest=self.table.batch * self.profile.provenance.cores,
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


@dataclass
class JointPlan:
    """One look at all models. ``free_bytes`` gets less with every target that needs more."""

    slots: Mapping[int, Observed]
    settings: ConfigurationSettings
    everywhere: int
    """Cores of this machine that models may have."""
    free_bytes: float
    now_ns: int

    def choose(self, models: Mapping[int, PlannedModel], nodes: Sequence[int]) -> None:
        """Give models that share these cores their targets, if together they gain enough by it.

        Without such a gain, only to those that shall keep cores of their own and do not, or the
        other way round.
        """
        shares = share_cores(nodes, {slot: model.demand for slot, model in models.items()})
        free, best = self.free_bytes, self._choices(models, shares)
        worth_it = self._is_worth_it(models, best, nodes)
        self.free_bytes = self.free_bytes if worth_it else free
        for slot, choice in best.items():
            model, seen = models[slot], self.slots[slot]
            present = seen.configuration
            groups = model.capped(choice.configuration) if worth_it else present
            if layout(groups) != layout(present):
                if model.may_go_to(groups, self.settings.timeout_s, self.now_ns):
                    model.target = groups
            elif self._is_pinned_wrongly(model, seen):
                model.target = present
            model.needs = _bytes(model, sum(group.instances for group in groups), choice.batch)

    def _choices(
        self, models: Mapping[int, PlannedModel], shares: Mapping[int, Sequence[int]]
    ) -> dict[int, Choice]:
        best: dict[int, Choice] = {}
        for slot in sorted(models, key=lambda s: sum(shares[s]) - sum(self.slots[s].threads)):
            model, seen = models[slot], self.slots[slot]
            try:
                best[slot] = choice = model.best(tuple(shares[slot]), self.free_bytes)
            except NoConfiguration as error:
                model.complain(f"{seen.name}: {error}")
                continue
            if layout(choice.configuration) != layout(seen.configuration):
                # When it serves, the old instances are gone.
                old = model.memory.instance * len(seen.threads)
                self.free_bytes -= max(0.0, _bytes(model, choice.instances, choice.batch) - old)
        return best

    def _is_worth_it(
        self,
        models: Mapping[int, PlannedModel],
        best: Mapping[int, Choice],
        nodes: Sequence[int],
    ) -> bool:
        """Whether the weighted latencies together get better by more than the noise.

        Also when they cannot be told, or when the present instances want more cores than there are.
        """
        now = then = 0.0
        used = 0
        for slot, choice in best.items():
            model, threads = models[slot], self.slots[slot].threads
            batch = min(choice.batch, model.estimator.current)
            present = model.present(threads, self.everywhere, batch)
            if present is None:
                return True
            used += sum(each or self.everywhere for each in threads)
            now += model.demand.weight * present.latency_ms
            then += model.demand.weight * choice.latency_ms
        return used > sum(nodes) or then < now * (1 - self.settings.gain)

    def _is_pinned_wrongly(self, model: PlannedModel, seen: Observed) -> bool:
        if seen.yields or not all(group.threads for group in seen.configuration):
            return False
        return model.pinned != self.settings.pin


def _bytes(model: PlannedModel, instances: int, batch: int) -> float:
    return instances * model.memory.instance + batch * model.memory.request
