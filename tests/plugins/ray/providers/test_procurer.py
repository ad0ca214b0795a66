"""The procurer on a provider of this process."""

import pytest

from shunter.allocator.cluster.procurement import Acquire, Drain, Kind, Release, Rules
from shunter.plugins.ray.providers.procurer import Procurer
from shunter.plugins.ray.providers.provider import Listed, ProviderError


class Cloud:
    """A provider that can be told to fail, and to be slow in listing what it has granted."""

    def __init__(self):
        self.listed, self.unlisted, self.notice, self.count = {}, {}, {}, 0
        self.scarce, self.error = set(), {}

    def _may(self, method):
        if method in self.error:
            raise ProviderError(self.error[method])

    def machines(self):
        self._may("machines")
        return list(self.listed.values())

    def notices(self):
        return self.notice

    def acquire(self, kind, count):
        self._may("acquire")
        if kind in self.scarce:
            return []
        names = [f"m{self.count + at}" for at in range(count)]
        self.count += count
        self.unlisted.update({name: Listed(name, kind) for name in names})
        return names

    def show(self):
        self.listed |= self.unlisted
        self.unlisted = {}

    def drain(self, name):
        self._may("drain")
        self.listed[name] = Listed(name, self.listed[name].kind, is_draining=True)

    def release(self, names):
        for name in names:
            self.listed.pop(name, None)


@pytest.fixture
def cloud():
    return Cloud()


def test_what_was_granted_is_not_asked_for_again_while_it_is_not_listed(cloud):
    here = Procurer(cloud)
    assert here.step(0.0, 2, {}) == [Acquire(Kind.SPOT, 2)]
    assert here.step(5.0, 2, {}) == []
    cloud.show()
    assert here.step(10.0, 2, {}) == []
    assert here.step(70.0, 2, {}) == []


def test_what_is_never_listed_does_not_exist(cloud):
    here = Procurer(cloud)
    here.step(0.0, 1, {})
    assert here.step(59.0, 1, {}) == []
    assert here.step(60.0, 1, {}) == [Acquire(Kind.SPOT, 1)]


def test_what_was_not_granted_is_asked_of_the_other_kind(cloud):
    cloud.scarce = {Kind.SPOT}
    here = Procurer(cloud)
    assert here.step(0.0, 2, {}) == []
    assert here.step(5.0, 2, {}) == [Acquire(Kind.ON_DEMAND, 2)]


def test_a_machine_that_falls_silent_is_replaced_after_a_while(cloud):
    here = Procurer(cloud, Rules(patience_s=100.0))
    here.step(0.0, 1, {})
    cloud.show()
    assert here.step(200.0, 1, {"m0": 1.0}) == []
    assert here.step(210.0, 1, {}) == []
    assert here.step(310.0, 1, {}) == []
    # Spot has failed with it, so the next one is on demand.
    assert here.step(311.0, 1, {}) == [
        Acquire(Kind.ON_DEMAND, 1),
        Release("m0", "it did not start in time"),
    ]


def test_a_controller_that_begins_anew_gives_nothing_back_that_it_has_not_heard_of(cloud):
    Procurer(cloud).step(0.0, 2, {})
    cloud.show()
    cloud.drain("m0")
    here = Procurer(cloud, Rules(patience_s=100.0))
    assert here.step(5000.0, 1, {}) == []
    assert here.step(5100.0, 1, {"m0": 2.0, "m1": 0.0}) == []
    assert here.step(5105.0, 1, {"m0": 0.0, "m1": 0.0}) == [Release("m0", "it has no work left")]


def test_a_drained_machine_that_is_silent_goes_when_it_is_given_up(cloud):
    here = Procurer(cloud, Rules(patience_s=100.0))
    here.step(0.0, 2, {})
    cloud.show()
    cloud.drain("m0")
    assert here.step(10.0, 1, {"m1": 0.0}) == []
    assert here.step(110.0, 1, {"m1": 0.0}) == [Release("m0", "it has no work left")]


def test_troubles_are_told_and_asked_about_again(cloud):
    here = Procurer(cloud)
    cloud.error = {"machines": "no credentials"}
    assert here.step(0.0, 1, {}) == ()
    assert here.problem == "no credentials"
    cloud.error = {"acquire": "no such launch template"}
    assert here.step(5.0, 1, {}) == []
    assert here.problem == "no such launch template"
    cloud.error = {}
    assert here.step(10.0, 1, {}) == [Acquire(Kind.ON_DEMAND, 1)]
    assert here.problem == ""
    cloud.show()
    cloud.error = {"drain": "busy"}
    assert here.step(15.0, 0, {"m0": 0.0}) == []
    cloud.error = {}
    assert here.step(20.0, 0, {"m0": 0.0}) == [Drain("m0", "not needed")]
