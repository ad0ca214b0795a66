"""The order of batches and swaps: tables, the paper's LRU as a special case, and a machine."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from shunter.allocator.memory.cache import CacheError, Heat
from shunter.allocator.memory.devices import Device, Devices, DoesNotFit, Model
from shunter.allocator.memory.scheduling import ModelScheduler, Rules, Run, Swap, Waiting


def scheduler(budgets, sizes, *, workers=1, resident=(), **rules):
    devices = Devices(
        [
            Device(f"d{number}", budget, workers=workers, bandwidth=1.0)
            for number, budget in enumerate(budgets)
        ]
    )
    for name, size in sizes.items():
        devices.register(Model(name, size, name in resident))
    return ModelScheduler(devices, Rules(**rules))


def finish(order, done, now=0.0):
    for each in done:
        if isinstance(each, Swap):
            order.swap_ended(each, now)
    for each in done:
        if isinstance(each, Run):
            order.batch_ended(each)


def make_hot(order, *names, now=0.0):
    """One after the other, with a batch each."""
    for name in names:
        for _ in range(2):
            finish(order, order.decide([Waiting(name, now)], now), now)


def test_a_cold_model_comes_and_a_batch_begins_behind_its_swap():
    order = scheduler([2], {"a": 1, "b": 1})
    assert order.decide([Waiting("a", 0)], 0) == [Swap("a", "d0"), Run("a", "d0")]


def test_a_swap_on_its_way_lets_hot_models_run():
    order = scheduler([2], {"a": 1, "b": 1})
    make_hot(order, "a")
    both = [Waiting("b", 1), Waiting("a", 2)]
    assert order.decide(both, 2) == [Run("a", "d0"), Swap("b", "d0")]


def test_a_model_below_its_threshold_comes_early_but_moves_nobody_who_waits():
    order = scheduler([1], {"a": 1, "b": 1})
    make_hot(order, "a")
    assert order.decide([Waiting("a", 9, batches=0), Waiting("b", 9, batches=0)], 9) == []
    assert order.decide([Waiting("b", 9, batches=0)], 9) == [Swap("b", "d0", ("a",))]


def test_strict_models_run_first_and_best_effort_ones_give_way_until_they_have_waited_long():
    order = scheduler([1], {"a": 1, "b": 1}, ageing_s=5.0)
    make_hot(order, "a", now=10)
    best = Waiting("a", 10, strict=False, batches=0)
    assert order.decide([best, Waiting("b", 10)], 10.5) == [
        Swap("b", "d0", ("a",)),
        Run("b", "d0"),
    ]
    two = scheduler([2], {"a": 1, "b": 1}, ageing_s=5.0)
    make_hot(two, "b", "a")
    (first,) = two.decide([Waiting("b", 9, strict=False), Waiting("a", 9)], 10)
    assert first == Run("a", "d0")
    two.batch_ended(first)
    assert two.decide([Waiting("b", 4, strict=False), Waiting("a", 9)], 10) == [Run("b", "d0")]


def test_who_is_in_use_leaves_when_it_has_stayed_as_long_as_its_swap_is_worth():
    order = scheduler([1], {"a": 1, "b": 1}, tenure=4.0)
    make_hot(order, "a")  # a second each
    wait = [Waiting("b", 0), Waiting("a", 0, batches=0)]
    assert order.decide(wait, 3.9) == []
    assert order.decide(wait, 4) == [Swap("b", "d0", ("a",)), Run("b", "d0")]


def test_who_came_for_a_request_runs_before_it_leaves():
    order = scheduler([2], {"x": 1, "a": 1, "b": 1}, tenure=0.0)
    make_hot(order, "x", "a", "b")  # "a" has been served more recently than "x"
    make_hot(order, "x")
    busy = [Waiting("x", 0, batches=2)]
    (run,) = order.decide(busy, 1)
    order.devices.register(Model("new", 1))
    (swap,) = order.decide([*busy, Waiting("a", 1)], 1)
    assert swap == Swap("a", "d0", ("b",))
    order.swap_ended(swap, 1)
    flood = [*busy, Waiting("a", 1), Waiting("new", 1)]
    assert order.decide(flood, 2) == []
    order.batch_ended(run)
    assert order.decide(flood, 2)[0] == Run("a", "d0")


def test_who_is_at_work_all_the_time_begins_nothing_more_and_leaves():
    order = scheduler([1], {"a": 1, "b": 1}, workers=2, tenure=0.0)
    make_hot(order, "a")
    (first,) = order.decide([Waiting("a", 0)], 1)
    flood = [Waiting("a", 0, batches=9), Waiting("b", 1)]
    (second,) = order.decide(flood, 1)
    order.batch_ended(first)
    assert order.decide(flood, 1) == []
    order.batch_ended(second)
    assert order.decide(flood, 1) == [Swap("b", "d0", ("a",)), Run("b", "d0")]
    gone = scheduler([1], {"a": 1, "b": 1}, workers=2, tenure=0.0)
    make_hot(gone, "a")
    gone.decide([Waiting("a", 0)], 1)
    gone.decide(flood, 1)
    assert gone.decide([Waiting("a", 0)], 1) == []  # both workers are busy
    assert not gone.devices.by_name["d0"].yields  # the other's client has gone


@pytest.mark.parametrize(
    ("a", "b", "later_a", "later_b"),
    [
        # The request of "b" that had aged has gone, and the next one has not.
        (Waiting("a", 0), Waiting("b", -9, False), Waiting("a", 0), Waiting("b", 1, False)),
        # A strict request has come to "a", which yields.
        (Waiting("a", 0, False), Waiting("b", 0, False), Waiting("a", 0), Waiting("b", 0, False)),
        # "b" has no batch's worth of requests any more.
        (Waiting("a", 0), Waiting("b", 0), Waiting("a", 0), Waiting("b", 0, batches=0)),
    ],
)
def test_room_is_promised_only_as_long_as_it_could_be_taken(a, b, later_a, later_b):
    order = scheduler([1], {"a": 1, "b": 1}, workers=2, tenure=0.0, ageing_s=5.0)
    make_hot(order, "a")
    assert order.decide([a], 1) == [Run("a", "d0")]
    assert order.decide([a, b], 1) == [Run("a", "d0")]
    order.batch_ended(Run("a", "d0"))
    assert order.decide([a, b], 1) == []  # "a" is still at work, and yields to "b"
    assert order.decide([later_a, later_b], 1) == [Run("a", "d0")]


def test_a_resident_model_comes_without_a_request_and_stays():
    order = scheduler([3], {"a": 1, "b": 2, "c": 2}, resident=["a"], tenure=0.0)
    assert order.decide([], 0) == [Swap("a", "d0")]
    order.swap_ended(Swap("a", "d0"), 0)
    make_hot(order, "b", "c", now=1)
    assert set(order.devices.by_name["d0"].cache.held) == {"a", "c"}


def test_a_resident_model_that_comes_late_takes_the_room_of_one_in_use():
    order = scheduler([2], {"a": 2})
    make_hot(order, "a")
    (run,) = order.decide([Waiting("a", 0, batches=5)], 1)
    with pytest.raises(DoesNotFit):
        order.devices.register(Model("r", 1, resident=True))  # "a" could never come again
    order.batch_ended(run)
    other = scheduler([2], {"a": 1, "b": 1})
    make_hot(other, "a", "b")
    (run,) = other.decide([Waiting("a", 0, batches=5)], 1)
    other.devices.register(Model("r", 1, resident=True))
    assert other.decide([Waiting("a", 0, batches=5)], 1) == [Swap("r", "d0", ("b",))]


def test_a_busy_models_copy_comes_to_an_idle_device_and_is_the_first_to_leave():
    order = scheduler([1, 2], {"a": 1, "b": 1, "c": 1})
    make_hot(order, "a")
    (held,) = [d.name for d in order.devices.holding("a")]
    other = {"d0": "d1", "d1": "d0"}[held]
    order.decide([Waiting("a", 0)], 1)
    assert order.decide([Waiting("a", 1)], 1.5) == []  # a copy takes a second
    found = order.decide([Waiting("a", 1)], 2)
    assert found == [Swap("a", other)]
    finish(order, found)
    assert order.decide([Waiting("a", 1)], 2) == [Run("a", other)]


def test_several_devices_are_one_larger_cache():
    order = scheduler([1, 1, 1], dict.fromkeys("abc", 1))
    found = order.decide([Waiting(name, 0) for name in "abc"], 0)
    assert {each.device for each in found if isinstance(each, Swap)} == {"d0", "d1", "d2"}
    assert {each.model for each in found if isinstance(each, Run)} == set("abc")


def test_what_can_never_fit_is_refused_at_registration():
    with pytest.raises(DoesNotFit):
        scheduler([2, 3], {"a": 4})
    with pytest.raises(DoesNotFit):
        scheduler([3], {"a": 2, "b": 2}, resident=["a"])
    with pytest.raises(DoesNotFit):
        scheduler([3], {"a": 2, "b": 2}, resident=["a", "b"])
    scheduler([3, 3], {"a": 2, "b": 2, "c": 1}, resident=["a", "b"])


def test_a_model_is_forgotten_once_nothing_of_it_is_under_way():
    order = scheduler([1], {"a": 1, "b": 1})
    swap, run = order.decide([Waiting("a", 0)], 0)
    for done in (lambda: order.swap_ended(swap, 1), lambda: order.batch_ended(run)):
        with pytest.raises(CacheError):
            order.forget("a")
        done()
    order.forget("a")
    assert not order.devices.by_name["d0"].cache.held
    assert order.decide([Waiting("a", 0)], 0) == []


# ---- the paper's


def lru(requests, sizes, budget):
    """Who is evicted for each request by the paper's memory manager."""
    held, found = [], []
    for name in requests:
        out = []
        if name in held:
            held.remove(name)
        else:
            while sum(sizes[each] for each in held) + sizes[name] > budget:
                out.append(held.pop(0))
        held.append(name)
        found.append(tuple(out))
    return found


@given(st.data())
def test_one_request_at_a_time_on_one_device_is_the_papers_lru(data):
    sizes = data.draw(st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 5), min_size=1))
    budget = data.draw(st.integers(max(sizes.values()), 12))
    requests = data.draw(st.lists(st.sampled_from(sorted(sizes)), max_size=40))
    order = scheduler([budget], sizes, swaps=1)
    found = []
    for now, name in enumerate(requests):
        done = order.decide([Waiting(name, now)], now)
        assert [each.model for each in done if isinstance(each, Run)] == [name]
        found.append(next((each.evict for each in done if isinstance(each, Swap)), ()))
        finish(order, done, now)
    assert found == lru(requests, sizes, budget)


# ---- whatever happens

NAMES = tuple("abcdefg")


class Pool(RuleBasedStateMachine):
    """Requests come and go, batches and swaps end in any order, models too."""

    @initialize(
        budgets=st.lists(st.integers(4, 9), min_size=1, max_size=3),
        sizes=st.lists(st.integers(1, 4), min_size=len(NAMES), max_size=len(NAMES)),
        workers=st.integers(1, 3),
        swaps=st.integers(1, 3),
        tenure=st.sampled_from([0.0, 1.0, 4.0]),
        copies=st.booleans(),
    )
    def begin(self, budgets, sizes, workers, swaps, tenure, copies):
        self.order = scheduler(
            budgets, {}, workers=workers, swaps=swaps, tenure=tenure, copies=copies, ageing_s=5.0
        )
        self.sizes = dict(zip(NAMES, sizes, strict=True))
        self.now = 0.0
        self.waiting, self.runs, self.swaps = {}, [], []
        for name in NAMES[:4]:
            self.register(name, name == "a")

    def register(self, name, resident):
        if name in self.order.devices.models:
            return
        try:
            self.order.devices.register(Model(name, self.sizes[name], resident))
        except DoesNotFit:
            return

    @rule(name=st.sampled_from(NAMES), resident=st.booleans())
    def comes(self, name, resident):
        self.register(name, resident)

    @rule(name=st.sampled_from(NAMES))
    def goes(self, name):
        try:
            self.order.forget(name)
        except CacheError:
            assert any(each.model == name for each in (*self.runs, *self.swaps))
        else:
            self.waiting.pop(name, None)
            assert not self.order.devices.holding(name)

    @rule(name=st.sampled_from(NAMES), strict=st.booleans(), batches=st.integers(0, 3))
    def asks(self, name, strict, batches):
        if name in self.order.devices.models:
            self.waiting[name] = Waiting(name, self.now, strict, batches)

    @rule(name=st.sampled_from(NAMES))
    def hangs_up(self, name):
        self.waiting.pop(name, None)

    @rule(seconds=st.floats(0.0, 3.0))
    def time_passes(self, seconds):
        self.now += seconds

    @precondition(lambda self: self.swaps)
    @rule(data=st.data(), fails=st.booleans())
    def a_swap_ends(self, data, fails):
        swap = data.draw(st.sampled_from(self.swaps))
        at_work = any((run.model, run.device) == (swap.model, swap.device) for run in self.runs)
        self.swaps.remove(swap)
        self.order.swap_ended(swap, self.now, 0.5, failed=fails and not at_work)

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def a_batch_ends(self, data):
        run = data.draw(st.sampled_from(self.runs))
        self.runs.remove(run)
        self.order.batch_ended(run)

    @rule()
    def decides(self):
        caches = {each.name: each.cache for each in self.order.devices.by_name.values()}
        hot = {
            (name, model)
            for name, cache in caches.items()
            for model, held in cache.held.items()
            if held.heat is Heat.HOT
        }
        busy = {(each.device, each.model) for each in self.runs}
        fresh = {
            (name, model)
            for name, cache in caches.items()
            for model, held in cache.held.items()
            if held.is_awaited
        }
        for each in self.order.decide(list(self.waiting.values()), self.now):
            if isinstance(each, Swap):
                self.swaps.append(each)
                for left in each.evict:
                    assert (each.device, left) in hot, "only what is hot leaves"
                    assert (each.device, left) not in busy, "nobody at work leaves"
                    assert not self.order.devices.models[left].resident
                    came_for = self.waiting.get(left)
                    if came_for and (each.device, left) in fresh:
                        # Only for one of a higher class, or a resident one.
                        taker = self.waiting.get(each.model)
                        assert (
                            taker is None
                            or self.order.devices.models[each.model].resident
                            or (taker.strict and not came_for.strict)
                            or self.now - taker.since >= 5.0
                        )
            else:
                self.runs.append(each)
                busy.add((each.device, each.model))
                wait = self.waiting[each.model]
                assert wait.batches > 0
                if wait.batches > 1:
                    self.waiting[each.model] = Waiting(
                        wait.name, wait.since, wait.strict, wait.batches - 1
                    )
                else:
                    del self.waiting[each.model]

    @invariant()
    def the_budget_holds(self):
        for device in self.order.devices.by_name.values():
            assert 0 <= device.cache.used <= device.cache.budget
            assert 0 <= device.running <= device.workers
            assert device.cache.coming <= self.order.rules.swaps
            here = [each for each in self.swaps if each.device == device.name]
            assert device.cache.coming == len(here)

    def teardown(self):
        """Everybody floods from now on, and everybody is served again and again."""
        if not hasattr(self, "order"):
            return
        models = self.order.devices.models
        served = dict.fromkeys(models, 0)
        for _ in range(60 * max(1, len(models))):
            self.now += 1.0
            self.waiting = {
                name: Waiting(name, self.now - 0.5, strict=ord(name) % 2 == 0, batches=3)
                if served[name]
                else Waiting(name, self.now - 60.0, strict=False, batches=3)
                for name in models
            }
            for swap in self.swaps:
                self.order.swap_ended(swap, self.now)
            self.swaps = []
            for run in self.runs:
                served[run.model] = served.get(run.model, 0) + 1
                self.order.batch_ended(run)
            self.runs = []
            self.decides()
            self.the_budget_holds()
            if all(served.values()):
                return
        raise AssertionError(f"never served: {[name for name in served if not served[name]]}")


def test_no_rule_is_broken_whatever_happens_and_everybody_is_served():
    run_state_machine_as_test(
        Pool, settings=settings(max_examples=120, stateful_step_count=40, deadline=None)
    )


@pytest.mark.parametrize("models", [5, 12])
def test_a_flooded_model_does_not_keep_the_others_waiting(models):
    """One always has ten batches, the others one now and then; room for a third of them."""
    random.seed(3)
    names = [f"m{number}" for number in range(models)]
    order = scheduler([max(2, models // 3)], dict.fromkeys(names, 1), workers=2)
    asked, longest, busy = {}, 0.0, []
    for step in range(4000):
        now = step / 10
        if random.random() < 0.02:
            asked.setdefault(random.choice(names[1:]), now)
        waiting = [Waiting(names[0], now, batches=10), *(Waiting(*each) for each in asked.items())]
        for each in order.decide(waiting, now):
            busy.append((now + (1.0 if isinstance(each, Swap) else 0.3), each))
            if isinstance(each, Run) and each.model in asked:
                longest = max(longest, now - asked.pop(each.model))
        over = [each for end, each in busy if end <= now]
        busy = [(end, each) for end, each in busy if end > now]
        for each in over:
            if isinstance(each, Swap):
                order.swap_ended(each, now)
        for each in over:
            if isinstance(each, Run):
                order.batch_ended(each)
    assert longest < 2.0 * models


def test_a_large_model_comes_although_room_was_promised_to_one_that_is_not_urgent_any_more():
    pool = Pool()  # found by the machine
    pool.begin([4], [1, 1, 1, 1, 2, 1, 1], workers=1, swaps=2, tenure=0.0, copies=False)
    pool.decides()
    pool.comes("e", resident=False)
    pool.comes("f", resident=False)
    pool.teardown()
