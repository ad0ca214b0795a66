"""The masks that the controller writes for models that give way."""

import logging
import os
import random
import subprocess
import sys

import pytest

from shunter.allocator.planning.profile import Profile, Provenance
from shunter.batching.page.control_page import ControlPage
from shunter.batching.page.layout import (
    GROUP_STRIDE,
    RUNNER_FIELDS,
    RUNNER_SIZE,
    RUNNERS_OFFSET,
    SLOT_COUNT,
    SLOT_FIELDS,
    SLOT_SIZE,
    SLOTS_OFFSET,
    RunnerState,
)
from shunter.batching.page.records import RunnerLine, SlotIdentity
from shunter.batching.page.slices import ALL_CPUS, of_cpus, of_device, words_of
from shunter.plugins.control.padding_control import (
    PaddingControl,
    kernel_preempts,
    write_header,
)
from shunter.plugins.control.settings import PreemptionSettings

MS = 10**6
CYCLE_NS = 100 * MS
ALL = (1 << SLOT_COUNT) - 1
CPUS = ALL_CPUS
LIGHT = {"solo_ns": MS, "solo_cpu_ns": MS, "segment_ns": MS // 10}
LIGHT_STRICT = {"fitted": 9, "fixed_ns": 10 * MS, "threads": 1}
AUTO, ALWAYS, NEVER = (PreemptionSettings(padding=each) for each in ("auto", "always", "never"))


class Server:
    """What the server and its workers write to the page."""

    def __init__(self, page):
        self.page = page
        self.identities = {}
        self.idle = True
        """Whether runners are under SCHED_IDLE."""
        self.control = PaddingControl(page, random.Random(1), 4, lambda line: self.idle)
        self.now = 0
        self.profiles = {}

    def poke(self, slot, name, value, index=0):
        at = SLOTS_OFFSET + slot * SLOT_SIZE + SLOT_FIELDS[name].offset
        self.page.words[at // 8 + index] = value

    def group(self, slot, group=0, **values):
        for name, value in values.items():
            self.poke(slot, f"group_{name}", value, group * GROUP_STRIDE // 8)

    def add(self, slot, *groups, generation=1):
        """``groups``: slices and whether the group gives way."""
        self.poke(slot, "slot_state", 1)
        for group, (slices, yields) in enumerate(groups):
            self.group(slot, group, yields=yields)
            for i, word in enumerate(words_of(slices)):
                self.poke(slot, "group_slices", word, group * GROUP_STRIDE // 8 + i)
        self.identities[slot] = SlotIdentity(
            slot_state=1,
            generation=generation,
            group_count=len(groups),
            model_name=f"m{slot}",
            model_version="1.0",
        )

    def add_pair(self):
        """Strict model 0 and best-effort model 1, which fit beside each other."""
        self.add(0, (CPUS, 0))
        self.group(0, **LIGHT_STRICT)
        self.add(1, (CPUS, 1))
        self.runner(0, 1, **LIGHT)

    def remove(self, slot):
        self.poke(slot, "slot_state", 0)
        del self.identities[slot]

    def runner(self, index, slot, slices=CPUS, pid=None, **values):
        values = {"slot": slot, "class": 1, "slices": slices, "pid": pid or os.getpid()} | values
        for name, value in values.items():
            name = name if name in RUNNER_FIELDS else f"runner_{name}"
            at = RUNNERS_OFFSET + index * RUNNER_SIZE + RUNNER_FIELDS[name].offset
            words = words_of(value) if name == "runner_slices" else [value]
            for i, word in enumerate(words):
                self.page.words[at // 8 + i] = word

    def cycle(self, settings=AUTO):
        self.now += CYCLE_NS
        self.control.do_work(self.identities, settings, self.now, self.profiles)

    def mask(self, slot):
        """None when the runners go by their own default."""
        return self.page.read_padding(slot)

    def serve(self, slot, batches, ns, bucket=0):
        for name, more in (("strict_batches", batches), ("strict_batch_ns", batches * ns)):
            at = (SLOTS_OFFSET + slot * SLOT_SIZE + SLOT_FIELDS[name].offset) // 8 + bucket
            self.page.words[at] += more


@pytest.fixture
def page(tmp_path):
    with ControlPage.create(
        tmp_path / "control", owner_pid=os.getpid(), created_unix_ns=1, now_ns=1
    ) as page:
        yield page


@pytest.fixture
def server(page):
    return Server(page)


def test_where_nobody_gives_way_nothing_is_written(server):
    server.add(0, (CPUS, 0))
    server.runner(0, 0)
    for settings in (AUTO, ALWAYS, NEVER):
        server.cycle(settings)
        assert server.mask(0) is None


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (ALWAYS, ALL),
        (NEVER, 0b1100),
        (PreemptionSettings(exclusive=True), ALL),
        (PreemptionSettings(exclusive=True, padding="never"), ALL),
    ],
)
def test_who_shares_no_slice_may_always_run_beside(server, settings, expected):
    server.add(0, (0b0110, 0))
    server.add(1, (0b0100, 0), (0b1000, 0))
    server.add(2, (0b0001, 0))
    server.add(3, (0b1100, 1))
    server.cycle(settings)
    assert server.mask(3) == expected
    assert [server.mask(slot) for slot in (0, 1, 2)] == [None] * 3


def test_a_model_with_both_kinds_of_groups_gives_way_to_itself(server):
    server.add(0, (CPUS, 0), (CPUS, 1))
    server.cycle(NEVER)
    assert server.mask(0) == 0


def test_groups_whose_slices_are_not_told_are_everywhere(server):
    server.add(0, (0, 0))
    server.add(1, (of_device(3), 1))
    server.cycle(NEVER)
    assert server.mask(1) == 0b10


def test_highest_slices_and_slots_count_too(server):
    high = 1 << 575
    server.add(SLOT_COUNT - 1, (high, 0))
    server.add(63, (high, 1))
    server.cycle(NEVER)
    assert server.mask(63) == 1 << 63


@pytest.mark.parametrize(
    ("idle", "profile", "strict", "open_to"),
    [
        # Both are known, their threads fit on the four cores, a segment is within 2 % of the pass.
        (False, LIGHT, LIGHT_STRICT, True),
        (True, LIGHT, LIGHT_STRICT, True),
        # Something is not known.
        (True, {}, LIGHT_STRICT, False),
        (True, LIGHT, {}, False),
        (True, {}, {}, False),
        # The segment is too long, unless the kernel takes the core away in the middle of it.
        (False, LIGHT | {"segment_ns": MS}, LIGHT_STRICT, False),
        (True, LIGHT | {"segment_ns": MS}, LIGHT_STRICT, True),
        # Too few cores for both.
        (True, LIGHT | {"solo_cpu_ns": 4 * MS}, LIGHT_STRICT, False),
        (True, LIGHT, LIGHT_STRICT | {"threads": 4}, False),
        (True, LIGHT, LIGHT_STRICT | {"threads": 0}, False),
        # Just enough of them; only the kernel is so exact.
        (True, LIGHT, LIGHT_STRICT | {"threads": 3}, True),
        (False, LIGHT, LIGHT_STRICT | {"threads": 3}, False),
    ],
)
def test_best_effort_runs_beside_strict_work_that_leaves_room(
    server, idle, profile, strict, open_to
):
    server.idle = idle
    server.add(0, (CPUS, 0))
    server.group(0, **strict)
    server.add(1, (CPUS, 1))
    server.runner(0, 1, **profile)
    server.cycle()
    assert server.mask(1) == 0b10 + open_to


def profile(**fbr):
    """That of a model which wants such shares of the bandwidth on so many cores, as ``on1``."""
    where = Provenance("m", "hash", "cpu", 4, "2.0", "sample")
    found = {int(cores.removeprefix("on")): share for cores, share in fbr.items()}
    return Profile(where, 4, 8, "adaptive", fbr=found)


@pytest.mark.parametrize(
    ("strict", "best_effort", "open_to"),
    [
        ({"on1": 0.3}, {"on1": 0.7}, True),
        ({"on1": 0.6}, {"on1": 0.7}, False),
        # Only on other numbers of cores: the next more that were measured, else nobody knows.
        ({"on2": 0.6, "on4": 0.1}, {"on1": 0.7}, False),
        ({"on1": 0.6}, {"on1": 0.1, "on2": 0.9}, True),
        # One has none, or was not measured.
        ({"on1": 0.9}, None, True),
        ({"on1": 0.9}, {}, True),
    ],
)
def test_profiles_of_both_say_how_a_pair_begins(server, strict, best_effort, open_to):
    server.add_pair()
    for slot, fbr in enumerate((strict, best_effort)):
        server.profiles[slot] = None if fbr is None else profile(**fbr)
    server.cycle()
    assert server.mask(1) == 0b10 + open_to


@pytest.mark.parametrize(("effect", "opened"), [(0.0, True), (0.3, False)])
def test_a_profile_that_forbids_a_pair_is_put_to_the_test_after_a_while(server, effect, opened):
    server.add_pair()
    server.profiles = {slot: profile(on1=0.8) for slot in (0, 1)}
    server.cycle()
    assert measure(server, effect, 600) == [0] * 600, "it has a rest first"
    assert measure(server, effect, 2000)[-1] == opened


def test_a_profile_that_comes_later_closes_no_pair_that_is_measured(server):
    server.add_pair()
    server.cycle()
    server.profiles = {slot: profile(on1=0.8) for slot in (0, 1)}
    assert sum(measure(server, 0.0, 400)) > 300


def test_it_stands_still_until_it_is_known_what_it_takes(server):
    server.add_pair()
    server.runner(0, 1, pid=-1)
    server.cycle()
    assert server.mask(1) == 0b11 - 1
    server.runner(0, 1, **LIGHT)
    server.cycle()
    assert server.mask(1) == 0b11


def test_it_stands_still_for_a_strict_model_that_comes_later_until_that_is_known(server):
    server.add(1, (CPUS, 1))
    server.runner(0, 1, **LIGHT)
    server.cycle()
    assert server.mask(1) == 0b10
    server.add(0, (CPUS, 0))
    server.cycle()
    assert server.mask(1) == 0b10
    server.group(0, **LIGHT_STRICT)
    server.cycle()
    assert server.mask(1) == 0b11


@pytest.mark.parametrize(("effect", "opened"), [(0.0, True), (0.3, False)])
def test_what_is_not_known_is_tried_after_a_while_where_the_kernel_helps(server, effect, opened):
    server.add_pair()
    server.group(0, threads=0)
    server.cycle()
    masks = measure(server, effect, 600)
    assert masks == [0] * 600, "it has a rest first"
    masks = measure(server, effect, 2000)
    assert masks[-1] == opened
    assert sum(masks) > 0
    server.group(0, threads=4)
    server.cycle()
    assert server.mask(1) == 0b10, "now it is known that there are too few cores"


def test_a_runner_that_begins_or_ends_takes_no_pair_back_to_the_start(server):
    server.add_pair()
    server.group(0, threads=0)
    server.cycle()
    assert sum(measure(server, 0.0, 2600)[-100:]) > 50, "measurement opened it"
    server.idle = False
    server.cycle()
    server.idle = True
    assert sum(measure(server, 0.0, 500)) > 400


@pytest.mark.parametrize("harmless", [0, 2600])
def test_a_pair_that_did_harm_has_its_long_rest_whichever_runner_begins_or_ends(server, harmless):
    server.add_pair()
    server.group(0, threads=0)
    server.cycle()
    measure(server, 0.0, harmless)
    assert any(measure(server, 0.3, 6000)), "it was tried, and did harm"
    server.idle = False
    server.cycle()
    server.idle = True
    assert sum(measure(server, 0.3, 1200)) == 0


def test_an_open_pair_that_gives_no_cores_back_any_more_is_still_measured(server):
    server.add_pair()
    server.group(0, threads=0)
    server.cycle()
    measure(server, 0.0, 2600)
    server.idle = False
    assert sum(measure(server, 0.0, 500)) > 400
    assert sum(measure(server, 0.3, 3000)[-1000:]) < 100, "only tried now and then"


def test_what_is_not_known_stands_still_where_the_kernel_does_not_help(server):
    server.idle = False
    server.add_pair()
    server.group(0, threads=0)
    server.cycle()
    assert measure(server, 0.0, 3000) == [0] * 3000


@pytest.mark.parametrize(("segment_ns", "tried"), [(MS // 10, True), (MS, False)])
def test_beside_strict_work_on_a_gpu_only_short_segments_are_tried(server, segment_ns, tried):
    gpu = 1 << 50
    server.idle = False  # no kernel takes multiprocessors back
    server.add(0, (gpu, 0))
    server.group(0, **LIGHT_STRICT)
    server.add(1, (gpu, 1))
    # How many multiprocessors it keeps busy is not known.
    server.runner(0, 1, gpu, **LIGHT | {"solo_cpu_ns": 0, "segment_ns": segment_ns})
    server.cycle()
    assert measure(server, 0.0, 600) == [0] * 600, "nothing is known before it was measured"
    assert measure(server, 0.0, 2000)[-1] == tried


def test_workers_of_the_network_front_end_may_be_anywhere(server):
    server.add(0, (0b0001, 0))
    server.add(1, (0b1000, 1))
    server.runner(0, 1, **LIGHT)
    server.cycle()
    assert server.mask(1) == 0b11
    server.poke(0, "network_workers", 2)
    server.cycle()
    assert server.mask(1) == 0b10


def measure(server, effect, cycles, *, works=True):
    """Strict batches of slot 0 beside slot 1's best effort; masks that were seen."""
    masks = []
    for _ in range(cycles):
        beside = server.mask(1) & 1
        server.serve(0, 3, round(10 * MS * (1 + effect * beside)))
        server.group(1, busy=int(works))
        server.cycle()
        masks.append(server.mask(1) & 1)
    return masks


def test_a_pair_that_slows_strict_work_is_closed_and_the_log_says_so(server, caplog):
    server.add_pair()
    server.cycle()
    with caplog.at_level(logging.INFO):
        masks = measure(server, 0.3, 600)
    assert masks[-100:] == [0] * 100
    [record] = caplog.records
    assert record.getMessage() == (
        "best effort of m1/1.0 does not run any more beside strict work of m0/1.0, "
        "which was 30.0 % slower beside it"
    )


@pytest.mark.parametrize(("effect", "works"), [(0.0, True), (0.3, False)])
def test_a_pair_that_does_no_harm_or_does_not_run_stays_open(server, effect, works):
    server.add_pair()
    server.cycle()
    masks = measure(server, effect, 400, works=works)
    assert sum(masks) > 300
    assert (sum(masks) < 400) is works, "parted now and then, to measure"


def test_a_parked_runner_and_one_that_ends_batches_have_work(server):
    server.add_pair()
    for batches in range(200):
        state = RunnerState.PARKED if batches % 2 else RunnerState.RUNNING
        server.runner(0, 1, state=state, batches=batches // 2)
        server.serve(0, 9, MS)
        server.cycle()
        if server.mask(1) != 0b11:
            return
    raise AssertionError("it was never parted to measure")


def test_other_settings_take_hold_at_once_and_forget_what_was_measured(server):
    server.add_pair()
    server.cycle()
    measure(server, 0.3, 600)
    assert server.mask(1) == 0b10
    for settings, expected in ((ALWAYS, ALL), (NEVER, 0b10), (AUTO, 0b11)):
        server.cycle(settings)
        assert server.mask(1) == expected


def test_a_new_generation_is_measured_anew_and_a_new_model_owes_nothing_to_the_old(server):
    server.add_pair()
    server.cycle()
    measure(server, 0.3, 600)
    server.add(0, (CPUS, 0), generation=2)
    server.cycle()
    assert server.mask(1) == 0b11
    server.remove(1)
    server.cycle()
    assert server.mask(1) is None


def test_runners_whose_processes_are_gone_do_not_count(server):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    server.add_pair()
    server.runner(0, 1, pid=gone.pid)
    server.cycle()
    assert server.mask(1) == 0b10


def test_strict_runners_are_not_taken_for_best_effort(server):
    server.add_pair()
    server.runner(0, 1, **{"class": 0})
    server.cycle()
    assert server.mask(1) == 0b10


SLEEPER = """
import os, sys
os.sched_setscheduler(0, int(sys.argv[1]), os.sched_param(0))
print(flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("policy", "slices", "expected"),
    [
        (os.SCHED_IDLE, CPUS, True),
        (os.SCHED_OTHER, CPUS, False),
        (os.SCHED_IDLE, of_cpus([48, 511]), True),
        (os.SCHED_IDLE, of_device(0, 0, 1), False),
        (os.SCHED_IDLE, of_device(7, 7, 1), False),
    ],
)
def test_the_kernel_preempts_what_is_idle_on_processors(policy, slices, expected):
    command = [sys.executable, "-c", SLEEPER, str(int(policy))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        line = RunnerLine(runner_pid=process.pid, runner_slices=slices)
        assert kernel_preempts(line) is expected
        process.stdin.close()
    assert not kernel_preempts(line)


def test_the_header_gets_the_settings(page):
    settings = PreemptionSettings("fifo", "concurrent", True, 1.5, 250, memory_floor_mb=100)
    write_header(page, settings, 100 << 20)
    header = page.header()
    assert (header.strict_order, header.best_effort_order, header.exclusive) == (1, 0, 1)
    assert (header.max_hold_us, header.longest_park_us) == (1500, 250_000)
    assert header.memory_wanted == 0
    write_header(page, settings, (100 << 20) - 1)
    assert page.header().memory_wanted == 1
    write_header(page, PreemptionSettings(), 0)
    assert page.header().memory_wanted == 0
