"""Which configuration is wanted when: numbers in, numbers out."""

import dataclasses
import itertools

import pytest

from shunter.allocator.planning.configuration import format_configuration, parse_configuration
from shunter.allocator.planning.profile import Cell, Profile, Provenance
from shunter.batching.page.layout import ChangeState
from shunter.batching.page.records import GroupTelemetry, SlotChange, SlotIdentity
from shunter.plugins.control.observed import Observed
from shunter.plugins.control.reconfiguration import Reconfiguration
from shunter.plugins.control.settings import ConfigurationSettings

SECOND = 10**9
SETTINGS = ConfigurationSettings(timeout_s=1)
MIB = 1 << 20


def profile(cells=None, instance_mib=100):
    """By default one request is soonest on two threads, eight on one thread each."""
    cells = cells or {(1, 1): 8.0, (1, 8): 16.0, (2, 1): 5.0, (2, 8): 26.0}
    measured = {
        key: Cell(*key, ms, ms, ms, runs=9, peak_bytes=instance_mib * MIB)
        for key, ms in cells.items()
    }
    threads, batch = (max(key[i] for key in cells) for i in (0, 1))
    return Profile(
        Provenance("m", "hash", "cpu", 2, "2.0", "sample"), threads, batch, "adaptive", measured
    )


class World:
    """A server as the page shows it, which does at once what is wanted."""

    def __init__(self, cores=(2,), free_mib=10_000, settings=SETTINGS):
        self.cores, self.free_mib = list(cores), free_mib
        self.policy = Reconfiguration(lambda: self.cores, lambda: self.free_mib * MIB, settings)
        self.slots = {}
        self.now = 0
        self.obeys = True

    def add(
        self,
        slot,
        configuration="1x0x8",
        depth=1,
        batch_size=8,
        auto=1,
        of=None,
        has_lists=False,
        yields=0,
    ):
        identity = SlotIdentity(
            **{
                **{f.name: 0 for f in dataclasses.fields(SlotIdentity)},
                "model_name": f"m{slot}",
                "model_version": "1.0",
                "archive": "",
                "last_change": "",
                "slot_state": 1,
                "auto": auto,
                "registered_batch_size": batch_size,
            }
        )
        self.slots[slot] = {
            "identity": identity,
            "depth": depth,
            "configuration": parse_configuration(configuration),
            "change": SlotChange(0, ChangeState.NONE),
            "profile": profile() if of is None else of,
            "has_lists": has_lists,
            "yields": yields,
            "served": (0.0, 0.0, 0),
            "arrivals": 0,
            "size": 1,
            "reads": 0,
        }

    def cycle(self, seconds=0.5):
        """One duty cycle; then the server obeys what is new."""
        self.now += round(seconds * SECOND)
        seen = {slot: self._observed(state) for slot, state in self.slots.items()}
        self.policy.observe(seen, dict.fromkeys(self.slots, 0), self.now)
        for slot, state in self.slots.items():
            wanted = self.policy.wanted(slot)
            if self.obeys and wanted and wanted.request != state["change"].change_request:
                state["configuration"] = wanted.groups
                state["change"] = SlotChange(wanted.request, ChangeState.SERVES)

    def run(self, seconds=5):
        for _ in range(round(seconds * 2)):
            self.cycle()

    def runs(self, slot):
        return format_configuration(self.slots[slot]["configuration"])

    @staticmethod
    def _observed(state):
        fixed_ms, request_ms, fitted = state["served"]
        groups = [
            GroupTelemetry(
                **{
                    **{f.name: 0 for f in dataclasses.fields(GroupTelemetry)},
                    "group_instances": g.instances,
                    "group_threads": g.threads,
                    "group_cap": g.batch,
                    "group_yields": state["yields"],
                    "group_fixed_ns": round(fixed_ms * 1e6),
                    "group_per_request_ns": round(request_ms * 1e6),
                    "group_fitted": fitted,
                    "group_requests": state["arrivals"],
                    "group_batches": state["arrivals"] // state["size"],
                }
            )
            for g in state["configuration"]
        ]

        def read():
            state["reads"] += 1
            return groups

        return Observed(
            state["identity"],
            state["depth"],
            read,
            state["change"],
            state["profile"],
            state["has_lists"],
            state["arrivals"],
        )


@pytest.fixture
def world():
    return World()


def test_the_configuration_follows_the_depth_both_ways(world):
    world.add(0, depth=16)
    world.run()
    assert world.runs(0) == "2x1x8"
    assert world.policy.wanted(0).pin is True
    world.slots[0]["depth"] = 0
    world.run()
    assert world.runs(0) == "1x2x8"
    assert world.policy.wanted(0).request == 2


def test_a_load_that_comes_and_goes_is_followed_less_and_less():
    world = World()
    world.add(0, depth=16)
    seen = []
    for second in range(120):
        world.slots[0]["depth"] = 16 if second // 3 % 2 else 1
        world.run(1)
        seen.append(world.runs(0))
    changes = [at for at in range(1, 120) if seen[at] != seen[at - 1]]
    assert len([at for at in changes if at < 20]) >= 3
    assert len([at for at in changes if at >= 60]) <= 3
    # A load that has come to stay is followed, and then forgiven.
    world.slots[0]["depth"] = 16
    world.run(200)
    assert world.runs(0) == "2x1x8"
    world.slots[0]["depth"] = 1
    world.run(3)
    assert world.runs(0) == "1x2x8"


def test_what_is_as_good_stays(world):
    world.add(0, depth=1)  # one worker that takes all cores is what one request wants
    world.run()
    assert world.policy.wanted(0) is None


def test_a_small_gain_is_not_worth_new_processes():
    equal = profile({(1, 1): 8.0, (1, 8): 16.0, (2, 1): 7.8, (2, 8): 26.0})
    world = World()
    world.add(0, "2x1x8", depth=1, of=equal)
    world.run()
    assert world.runs(0) == "2x1x8"


NEAR = {(1, 1): 8.0, (1, 8): 50.0, (2, 1): 5.0, (2, 16): 51.5}
"""Two instances are 3 % ahead with 16 requests: by the profile alone not worth a change."""


def serve(world, added_ms, clients=16, fitted=100, seconds=30):
    """So many clients for so long; to each request a batch of theirs serving adds that."""
    world.slots[0]["depth"] = clients
    for _ in range(seconds):
        groups = world.slots[0]["configuration"]
        instances, threads = groups[0].instances, groups[0].threads or 2
        size = clients // instances
        served_ms = NEAR[threads, size] + added_ms * size
        world.slots[0] |= {"served": (0.0, served_ms / size, fitted), "size": size}
        world.slots[0]["arrivals"] += clients
        world.run(1)


def test_what_serving_adds_to_each_request_counts_against_one_fat_instance():
    world = World()
    world.add(0, batch_size=16, of=profile(NEAR))
    serve(world, 0.0)
    assert world.runs(0) == "1x0x8"
    serve(world, 0.6)
    assert world.runs(0) == "2x1x8"
    serve(world, 0.6, seconds=300)
    assert world.runs(0) == "2x1x8"
    assert world.policy.wanted(0).request == 1


def test_what_one_request_alone_is_slowed_down_by_says_nothing_of_large_batches():
    world = World()
    world.add(0, batch_size=16, of=profile(NEAR))
    serve(world, 1.2, clients=1, seconds=100)
    world.slots[0]["depth"] = 16  # all of them wait for the first answer
    world.run(30)
    assert world.policy.wanted(0) is None


@pytest.mark.parametrize(
    ("added_ms", "given"),
    [
        (0.6, {"fitted": 9}),
        (0.6, {"yields": 1}),
        (-2.0, {}),
    ],
    ids=["a line of a few batches", "workers that stand still for others", "faster"],
)
def test_a_line_that_says_nothing_of_serving_changes_nothing(added_ms, given):
    world = World()
    world.add(0, batch_size=16, of=profile(NEAR), yields=given.get("yields", 0))
    serve(world, added_ms, fitted=given.get("fitted", 100))
    assert world.policy.wanted(0) is None


def test_between_plans_the_groups_of_an_idle_model_are_not_read():
    world = World(settings=dataclasses.replace(SETTINGS, timeout_s=1000))
    world.add(0, depth=1)
    world.run()
    before = world.slots[0]["reads"]
    world.run(60)
    assert world.slots[0]["reads"] == before
    world.slots[0]["arrivals"] += 1
    world.cycle()
    assert world.slots[0]["reads"] > before


def test_the_line_of_one_group_is_followed_and_not_now_this_one_now_that():
    groups = [
        GroupTelemetry(
            **{
                **{f.name: 0 for f in dataclasses.fields(GroupTelemetry)},
                "group_instances": 1,
                "group_threads": threads,
                "group_fitted": fitted,
            }
        )
        for threads, fitted in ((1, 9), (2, 40), (4, 90))
    ]
    observed = Observed(None, 0, lambda: groups, None, None)
    assert observed.fitted.group_threads == 2


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"auto": 0}, None),
        ({"profile": None}, "no profile that can be used here"),
        ({"has_lists": True}, "lists by worker group in shunter.toml"),
    ],
    ids=["operator", "bare", "lists"],
)
def test_some_models_are_left_alone_and_it_is_said_once_why(world, given, why, caplog):
    caplog.set_level("INFO")
    bare = "profile" in given
    world.add(0, depth=16, **({} if bare else given))
    if bare:
        world.slots[0] |= given
    world.run()
    assert world.policy.wanted(0) is None
    said = [f"m0/1.0 keeps its configuration: {why}"] if why else []
    assert [r.getMessage() for r in caplog.records] == said


def test_a_model_that_gets_lists_by_worker_group_is_not_changed_any_more(world):
    world.add(0, depth=16)
    world.run()
    assert world.runs(0) == "2x1x8"
    world.slots[0] |= {"has_lists": True, "depth": 1}
    world.run()
    assert (world.runs(0), world.policy.wanted(0)) == ("2x1x8", None)


@pytest.mark.parametrize("pin", [True, False])
def test_the_best_configuration_is_pinned_or_set_free_as_the_settings_say(pin):
    world = World(settings=dataclasses.replace(SETTINGS, pin=pin))
    world.add(0, "2x1x8", depth=16)
    for request, wanted in enumerate((pin, not pin, pin), 1):
        world.policy.settings = dataclasses.replace(SETTINGS, pin=wanted)
        world.run()
        found = world.policy.wanted(0)
        assert (found.request, found.pin) == (request, wanted)
        assert format_configuration(found.groups) == "2x1x8"


def test_other_numbers_of_the_settings_hold_for_models_that_are_known():
    world = World(settings=dataclasses.replace(SETTINGS, timeout_s=1000))
    world.add(0, depth=16)
    world.run()
    assert world.policy.wanted(0) is None
    world.policy.settings = SETTINGS
    world.run()
    assert world.runs(0) == "2x1x8"


def test_a_model_whose_load_is_not_known_yet_stays_as_it_is():
    world = World(cores=(4,))
    world.add(0, depth=16)
    world.run()
    assert world.runs(0) == "4x1x8"
    world.add(1, "2x1x8", depth=16)
    seen = set()
    for _ in range(10):
        world.cycle()
        seen.add(world.runs(1))
    assert seen == {"2x1x8"}
    assert world.runs(0) == "2x1x8"


def test_nothing_happens_when_the_settings_say_so():
    world = World(settings=dataclasses.replace(SETTINGS, auto=False))
    world.add(0, depth=16)
    world.run()
    assert world.policy.wanted(0) is None


def test_while_a_change_is_under_way_nothing_else_is_wanted(world):
    world.obeys = False
    world.add(0, depth=16)
    world.run(2)
    first = world.policy.wanted(0)
    assert first.request == 1
    world.slots[0]["change"] = SlotChange(1, ChangeState.UNDER_WAY)
    world.slots[0]["depth"] = 1
    world.run(20)
    assert world.policy.wanted(0) is first


def test_after_a_failure_the_next_attempt_waits_longer_and_longer(world):
    world.obeys = False
    world.add(0, depth=16)
    attempts = []
    for _ in range(80):
        world.cycle()
        wanted = world.policy.wanted(0)
        if wanted and wanted.request != world.slots[0]["change"].change_request:
            attempts.append(world.now / SECOND)
            world.slots[0]["change"] = SlotChange(wanted.request, ChangeState.UNDONE)
    pauses = [b - a for a, b in itertools.pairwise(attempts)]
    assert len(pauses) >= 3
    assert pauses == sorted(pauses) and pauses[0] >= 2 and pauses[-1] >= 2 * pauses[0]


def test_changes_go_one_at_a_time_and_who_gives_cores_back_goes_first():
    world = World(cores=(2,))
    world.obeys = False
    world.add(0, "1x1x8", depth=16)
    world.add(1, "2x1x8", depth=1)
    world.run(2)
    assert world.policy.wanted(0) is None
    assert format_configuration(world.policy.wanted(1).groups) == "1x1x8"
    world.obeys = True
    world.run()
    assert (world.runs(0), world.runs(1)) == ("1x1x8", "1x1x8")


def test_two_models_never_keep_more_cores_than_there_are():
    world = World(cores=(2,))
    world.add(0, "2x1x8", depth=16)
    world.run()
    assert world.runs(0) == "2x1x8"
    world.add(1, "1x0x8", depth=16)
    world.run()
    assert (world.runs(0), world.runs(1)) == ("1x1x8", "1x1x8")
    del world.slots[1]
    world.run()
    assert world.runs(0) == "2x1x8"


def test_cores_that_an_operator_gave_away_are_not_given_again():
    world = World(cores=(3,))
    world.add(0, "1x1x8", auto=0)
    world.add(1, "1x0x8", depth=16)
    world.run()
    assert world.runs(1) == "2x1x8"


def test_memory_bounds_the_instances():
    world = World(free_mib=150)
    world.add(0, "1x1x8", depth=16)
    world.run()
    assert world.runs(0) == "1x1x8"  # two would be faster and need 200 MiB
    world.free_mib = 250
    world.run()
    assert world.runs(0) == "2x1x8"


def test_what_does_not_fit_at_all_is_said_once(caplog):
    world = World(free_mib=50)
    world.add(0, "1x1x8", depth=16)
    world.run(10)
    assert world.policy.wanted(0) is None
    assert [r.getMessage() for r in caplog.records if r.levelname == "WARNING"] == [
        "m0/1.0: one instance with a batch of 1 needs 100 MiB, 50 MiB are free"
    ]


def test_two_models_do_not_get_the_same_memory():
    """450 MiB for instances of 100: a second one of each would have to load with 150 left."""
    world = World(cores=(4,))
    for slot in (0, 1):
        world.add(slot, "1x1x8", depth=16)
    seen = [1, 1]
    for _ in range(40):
        world.free_mib = free = 450 - 100 * sum(seen)
        world.cycle()
        now = [sum(g.instances for g in world.slots[slot]["configuration"]) for slot in (0, 1)]
        assert all(new == old or 100 * new <= free for new, old in zip(now, seen, strict=True))
        seen = now
    assert sorted(seen) == [1, 2]


def test_a_target_waits_until_its_memory_is_free_again():
    """Both are planned with 1000 MiB; what the first change leaves is too little for the second."""
    world = World(cores=(4,), free_mib=1000)
    world.obeys = False
    for slot in (0, 1):
        world.add(slot, "1x1x8", depth=16)
    world.run(2)
    (first,) = (slot for slot in (0, 1) if world.policy.wanted(slot))
    world.free_mib = 50  # somebody else has taken it
    groups = world.policy.wanted(first).groups
    world.slots[first] |= {"change": SlotChange(1, ChangeState.SERVES), "configuration": groups}
    world.cycle(0.1)
    assert world.policy.wanted(1 - first) is None
    world.free_mib = 1000
    world.run(5)
    assert format_configuration(world.policy.wanted(1 - first).groups) == "2x1x8"


# ---- the batch of all instances, and that of each


SIXTEEN = {
    (t, b): 1 + b * (0.1 + 0.9 / t) for t in (1, 2, 4, 8, 16) for b in (1, 2, 4, 8)
}


def sixteen(batch=8):
    found = profile({key: ms for key, ms in SIXTEEN.items() if key[1] <= batch})
    return dataclasses.replace(
        found, provenance=dataclasses.replace(found.provenance, cores=16)
    )


def test_the_registered_batch_size_bounds_each_instance_and_not_their_sum():
    world = World(cores=(16,))
    world.add(0, depth=64, of=sixteen())
    world.run()
    # Planned for 8 requests in all it would be 8x2.
    assert world.runs(0) == "16x1x8"


def test_no_instance_gets_a_larger_batch_than_is_registered():
    large = profile({(1, b): 10 + b / 10 for b in (1, 8, 64)} | {(2, b): 9.0 for b in (1, 8, 64)})
    world = World(cores=(2,))
    world.add(0, "1x1x8", depth=16, batch_size=8, of=large)
    world.run()
    assert world.runs(0) == "2x1x8"  # and not one of 16 on both cores


def test_a_model_that_is_never_batched_gets_more_instances():
    world = World(cores=(16,))
    world.add(0, depth=16, batch_size=1, of=sixteen())
    world.run()
    assert world.runs(0) == "16x1x1"
    world.slots[0]["depth"] = 4
    world.run()
    assert world.runs(0) == "4x4x1"
    world.slots[0]["depth"] = 1
    world.run()
    assert world.runs(0) == "1x16x1"


def test_more_than_the_instances_hold_at_once_runs_in_rounds(caplog):
    world = World(cores=(2,), free_mib=150)
    world.add(0, "1x0x8", depth=1000)
    world.run()
    assert world.runs(0) == "1x1x8"  # one instance fits, and 8 requests are soonest on one thread
    assert not [r for r in caplog.records if r.levelname == "WARNING"]


def test_request_numbers_go_on_where_the_last_controller_ended(world):
    world.add(0, depth=16)
    world.slots[0]["change"] = SlotChange(41, ChangeState.SERVES)
    world.run()
    assert world.policy.wanted(0).request == 42


def test_what_the_server_does_not_take_up_does_not_keep_the_others_waiting():
    world = World(cores=(4,))
    world.obeys = False
    world.add(0, "1x1x8", depth=16)
    world.add(1, "1x1x8", depth=16)
    world.run(2)
    (first,) = (slot for slot in (0, 1) if world.policy.wanted(slot))
    world.run(40)
    assert world.policy.wanted(1 - first) is not None


def test_a_change_that_an_earlier_controller_began_is_waited_for(world):
    world.add(0, depth=1)
    world.slots[0]["change"] = SlotChange(7, ChangeState.UNDER_WAY)
    world.slots[0]["depth"] = 16
    world.run()
    assert world.policy.wanted(0) is None
    world.slots[0]["change"] = SlotChange(7, ChangeState.SERVES)
    world.run()
    assert world.policy.wanted(0).request == 8


def test_another_profile_does_not_forget_a_change_under_way(world):
    world.obeys = False
    world.add(0, depth=16)
    world.run(2)
    wanted = world.policy.wanted(0)
    assert wanted is not None
    world.slots[0]["profile"] = profile()
    world.run(2)
    assert world.policy.wanted(0) is wanted


def test_cores_of_a_model_whose_change_failed_are_not_given_to_others():
    world = World(cores=(2,))
    world.obeys = False
    world.add(0, "2x1x8", depth=1)
    world.add(1, "1x0x8", depth=16)
    world.run(2)
    first = world.policy.wanted(0)
    assert format_configuration(first.groups) == "1x1x8"
    world.slots[0]["change"] = SlotChange(first.request, ChangeState.UNDONE)
    world.cycle(0.1)
    assert world.policy.wanted(1) is None
    world.run(2)  # nothing is left but a core to share
    assert format_configuration(world.policy.wanted(1).groups) == "1x1x8"


def test_another_model_in_the_slot_begins_anew(world):
    world.add(0, depth=16)
    world.run()
    identity = dataclasses.replace(world.slots[0]["identity"], model_version="2.0")
    world.slots[0] |= {"identity": identity, "configuration": parse_configuration("1x0x8")}
    world.cycle()
    assert world.policy.wanted(0) is None
    world.run()
    assert world.runs(0) == "2x1x8"


# ---- models that give way


def test_a_model_that_gives_way_takes_no_core_from_a_strict_one():
    alone, both = World((2, 2)), World((2, 2))
    for world in (alone, both):
        world.add(0, depth=16)
        world.add(1, depth=4)
    both.add(2, depth=64, yields=1)
    both.add(3, "2x2x8", auto=0, yields=1)
    for world in (alone, both):
        world.run()
    assert [both.runs(slot) for slot in (0, 1)] == [alone.runs(slot) for slot in (0, 1)]


def test_each_model_that_gives_way_is_planned_with_all_cores_and_not_pinned():
    world = World()
    world.add(0, "1x2x8", auto=0)
    for slot in (1, 2):
        world.add(slot, depth=16, yields=1)
    world.run()
    for slot in (1, 2):
        assert world.runs(slot) == "2x1x8"
        assert world.policy.wanted(slot).pin is False


def test_a_model_that_gives_way_is_not_changed_for_its_pins_alone():
    world = World()
    world.add(0, "2x1x8", depth=16, yields=1)
    world.run()
    assert world.policy.wanted(0) is None
    world.slots[0]["yields"] = 0
    world.run()
    assert world.policy.wanted(0).pin is True
