"""How many machines there are, over a provider in memory."""

import pytest

from shunter.allocator.cluster.load import Fit, ModelState
from shunter.allocator.cluster.procurement import Kind
from shunter.plugins.ray.number import STEP_S, NumberOfMachines
from shunter.plugins.ray.providers.provider import Listed
from shunter.plugins.ray.records.demand import demands, seen, unanswered
from shunter.plugins.ray.records.directory import Entry, Report
from shunter.plugins.ray.records.loads import Work
from shunter.plugins.ray.records.settings import MachinesSettings


class Machines:
    """A provider that has as many as are asked for."""

    def __init__(self, *names):
        self.there = dict.fromkeys(names, False)
        self.ends = {}

    def machines(self):
        return [Listed(name, Kind.SPOT, drains) for name, drains in self.there.items()]

    def notices(self):
        return self.ends

    def acquire(self, kind, count):
        names = [f"new-{len(self.there) + each}" for each in range(count)]
        self.there |= dict.fromkeys(names, False)
        return names

    def drain(self, name):
        self.there[name] = True

    def release(self, names):
        for name in names:
            self.there.pop(name, None)


def entry(name, *, arrivals=(0, 0), state="serving", pid=1, is_head=False, held=0):
    work = Work("m", "1", True, True, ModelState(Fit(0.1, 0.0)), 1, held, 0, False, arrivals, 4)
    works = (work,) if state in ("serving", "draining") else ()
    return Entry(name, f"id of {name}", Report(state, "", works, pid=pid), is_head=is_head)


def directory(*entries):
    return {each.name: each for each in entries}


@pytest.fixture
def provider():
    return Machines("a")


@pytest.fixture
def drained():
    return []


@pytest.fixture
def number(provider, drained):
    return NumberOfMachines(provider, MachinesSettings(least=2, most=4, keep_s=1), drained.append)


def test_the_head_counts_and_is_not_asked_for(number, provider):
    for state in ("starting", "serving"):
        number.look(STEP_S, directory(entry("head", is_head=True, state=state), entry("a")))
        assert list(provider.there) == ["a"]
    assert number.told() == {"wanted": 2, "problem": ""}


def test_more_machines_come_with_the_load(number, provider):
    for second in range(60):
        came = (second * 60, 0)  # 60 a second of which one worker does 10 in batches of 4
        here = directory(entry("head", is_head=True, arrivals=came), entry("a"))
        number.look(second * STEP_S, here)
    assert number.told()["wanted"] == 4
    assert len(provider.there) == 3


def test_one_whose_end_is_announced_is_replaced_and_drained_then(number, provider, drained):
    head = entry("head", is_head=True)
    number.look(0, directory(head, entry("a")))
    provider.ends["a"] = 1e12
    number.look(1, directory(head, entry("a")))
    assert len(provider.there) == 2
    assert not drained
    new = next(name for name in provider.there if name != "a")
    number.look(2, directory(head, entry("a"), entry(new)))
    assert drained == ["a"]
    number.look(3, directory(head, entry("a", state="draining"), entry(new)))
    assert "a" in provider.there
    number.look(4, directory(head, entry("a", state="released"), entry(new)))
    assert list(provider.there) == [new]


def test_it_acts_once_a_second(number, provider):
    number.look(0, directory(entry("a")))
    before = dict(provider.there)
    number.look(STEP_S / 2, directory())
    assert provider.there == before


def test_a_controller_that_begins_gives_nothing_back(provider, drained):
    provider.there |= dict.fromkeys("bc", False)
    number = NumberOfMachines(provider, MachinesSettings(least=1, keep_s=600), drained.append)
    for second in range(20):
        number.look(second, directory(*map(entry, "abc")))
    assert (number.told()["wanted"], drained) == (3, [])


def test_the_rate_is_what_came_since_by_class_and_of_servers_that_went_on():
    before = seen(10.0, [entry("a", arrivals=(5, 1)), entry("b", arrivals=(9, 9))])
    here = [
        entry("a", arrivals=(25, 2)),
        entry("b", arrivals=(3, 3), pid=2),
        entry("c", arrivals=(7, 7)),
    ]
    found = {each.is_strict: each for each in demands(before, seen(12.0, here), here)}
    assert {strict: each.rate for strict, each in found.items()} == {True: 10.0, False: 0.5}
    assert (found[True].batch_size, found[True].batch_s) == (4, 0.1)


@pytest.mark.parametrize(
    ("state", "held", "expected"),
    [("serving", 0, 0), ("serving", 3, 3), ("draining", 0, 1), ("released", 0, 0)],
)
def test_what_is_unanswered(state, held, expected):
    assert unanswered(entry("a", state=state, held=held)) == expected
