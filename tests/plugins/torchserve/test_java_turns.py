"""Slices, hold words and turns of the jar, through the program TurnsTool."""

import json
import random
from functools import reduce
from operator import or_

import pytest

from shunter.batching.page.layout import DEVICE_COUNT, Order
from shunter.batching.page.slices import ALL_CPUS, ALL_DEVICES, EVERY, of_cpus, of_device

pytestmark = pytest.mark.java

STRICT, BEST_EFFORT = 0, 1


@pytest.fixture
def lines(run_tool, tmp_path):
    """Runs a mode of the tool on rows; returns what it printed."""

    def lines(mode, rows):
        path = tmp_path / "rows.json"
        path.write_text(json.dumps(rows))
        done = run_tool("TurnsTool", mode, path)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.splitlines()

    return lines


def test_slices_are_those_of_cores_and_of_devices_by_first_appearance(lines):
    def devices(*numbers):
        return sum(map(of_device, numbers))

    table = [
        (None, None, ALL_CPUS),
        ("auto", None, ALL_CPUS),
        ("0", None, 1),
        ("0-3,8", None, 0b1_0000_1111),
        ("0", None, of_cpus([0])),
        ("47-49,511", None, of_cpus([47, 48, 49, 511])),
        ("63-64", None, of_cpus([63, 64])),
        ("3,512", None, ALL_CPUS),
        ("8000-8191", None, ALL_CPUS),
        (None, "GPU-a", devices(0)),
        ("0-3", "GPU-a", devices(0)),
        (None, "GPU-b,GPU-a", devices(0, 1)),
        (None, " GPU-c , GPU-b ", devices(1, 2)),
        ("1", "", 0b10),
        (None, "-1", ALL_CPUS),
        *((None, f"MIG-{n}", devices(n)) for n in range(3, DEVICE_COUNT)),
        (None, "MIG-8", ALL_DEVICES),
        (None, "MIG-9", ALL_DEVICES),
        (None, "GPU-a", devices(0)),
    ]
    found = [line.split("|") for line in lines("slices", [None, *(row[:2] for row in table)])]
    assert [int(slices, 16) for slices, _, _ in found] == [row[2] for row in table]
    asked = [told.count("asked [") for _, _, told in found]
    assert sum(asked) == 3 + 7
    named = ["GPU-a", "GPU-b,GPU-a", "GPU-c,GPU-b", "", "-1", "MIG-3"]
    assert [line[1] for line in found[10:16]] == named
    assert "more than 8" in found[-3][2]


def test_a_device_is_the_same_by_all_its_names(lines):
    a, b = "GPU-aaaa", "GPU-bbbb"

    def known(uuid, gpu, start=0, size=8):
        return {"uuid": uuid, "gpu": gpu, "start": start, "size": size}

    low, high = known("MIG-11", b, 0, 4), known("MIG-22", b, 4, 4)
    nvml = {"0": known(a, a), a: known(a, a), "GPU-aa": known(a, a), "1": known(b, b)}
    nvml |= {"MIG-11": low, f"MIG-{b}/1/0": low, "MIG-22": high, "MIG-2": high}
    table = [
        ("0", of_device(0), a),
        (a, of_device(0), a),
        ("GPU-aa", of_device(0), a),
        ("MIG-2", of_device(1, 4, 4), "MIG-22"),
        (f"MIG-{b}/1/0", of_device(1, 0, 4), "MIG-11"),
        ("MIG-11,MIG-22", of_device(1), "MIG-11,MIG-22"),
        ("1, 0", of_device(1) | of_device(0), f"{b},{a}"),
        ("7", of_device(2), "7"),  # as CUDA would: who names it gets what there is
    ]
    found = lines("slices", [nvml, *((None, name) for name, _, _ in table)])
    split = [line.split("|") for line in found]
    assert [(int(slices, 16), named) for slices, named, _ in split] == [row[1:] for row in table]
    assert [told.count("asked [") for _, _, told in split] == [1] * 7 + [2]
    assert ["warned" in told for _, _, told in split] == [False] * 7 + [True]
    assert split[5][2] == "[asked [MIG-11, MIG-22]]"
    assert split[6][2] == "[asked [1]]"


@pytest.mark.parametrize(
    ("number", "visible", "device"),
    [
        (1, None, "1"),
        (1, "", "1"),
        (1, "4, GPU-a", "GPU-a"),
        (0, "4,GPU-a", "4"),
        (2, "4,GPU-a", "2"),
    ],
)
def test_a_stock_number_counts_what_the_server_may_see(run_tool, number, visible, device):
    done = run_tool("TurnsTool", "stock", str(number), *([] if visible is None else [visible]))
    assert done.stdout.strip() == device, done.stderr


MAX_HOLD_NS = 2_000_000_000


def _mask(held):
    return reduce(or_, (slices for slices, _ in held.values()), 0)


def _holds(rows):
    """Mask, models, since and progress after each row, as the contract says them.

    A row is a time and a model, and then its slices and slot, or nothing for progress.
    """
    told, moved, since, progress, expected = {}, {}, 0, 0, []
    before = {}
    for now, model, *where in rows:
        if where:
            if where[0] and not told.get(model, (0, -1))[0]:
                moved[model] = now
            told[model] = where
            is_late = now - moved.get(model, 0) > MAX_HOLD_NS
            held = {**before, model: (0 if is_late else where[0], where[1])}
            if held[model][0] and not before.get(model, (0, -1))[0]:
                progress = now
            since = now if _mask(held) & ~_mask(before) else since
            before = held
        else:
            moved[model] = now
            progress = now if before.get(model, (0, -1))[0] else progress
        models = 0
        for s, number in before.values():
            models |= 1 << number if s and number >= 0 else 0
        if any(s and number < 0 for s, number in before.values()):
            models = 0
        expected.append((_mask(before), models % (1 << 64), models >> 64, since, progress))
    return expected


@pytest.fixture
def line(lines):
    """Tells models' rows to the server's line; returns it after each, and at the end."""

    def line(rows):
        told = [(now, m, *((f"{w[0]:x}", w[1]) if w else ())) for now, m, *w in rows]
        return [tuple(int(word, 16) for word in row.split()) for row in lines("hold", told)]

    return line


def test_the_line_is_always_what_the_models_hold_together(line):
    rng = random.Random(8)
    slots = [3, 64, 127, -1, 0, -1]
    rows, now = [], 1
    for _ in range(600):
        now += rng.choice([1, 1, 1, MAX_HOLD_NS // 3, MAX_HOLD_NS, MAX_HOLD_NS + 1])
        model = rng.randrange(len(slots))
        mask = rng.choice([0, 0, 1, 0b110, 1 << 63, 1 << 64, of_device(7), ALL_CPUS, EVERY])
        rows.append((now, model, mask, slots[model]) if rng.random() < 0.7 else (now, model))
    rows += [(now + 1, model, 0, slot) for model, slot in enumerate(slots)]
    *found, released, after = line(rows)
    expected = _holds(rows)
    assert found == expected
    assert expected[-1][:3] == released[:3] == after[:3] == (0, 0, 0)


def test_a_model_that_gets_nowhere_holds_no_longer_though_others_do(line):
    late = MAX_HOLD_NS + 2
    rows = [
        (1, 0, 0b01, 3),
        (1, 1, 0b10, 4),
        (late - 1, 1),
        (late - 1, 0, 0b01, 3),
        (late, 0, 0b01, 3),
        (late, 1, 0b10, 4),
        (late + 1, 0),
        (late + 1, 0, 0b01, 3),
    ]
    *found, _, _ = line(rows)
    both = (0b11, 1 << 3 | 1 << 4)
    other = (0b10, 1 << 4)
    assert [row[:2] for row in found[1:]] == [both, both, both, other, other, other, both]


def test_beside_a_model_without_a_slot_no_model_is_named(line):
    rows = [(1, 0, 1, 3), (2, 1, 1, -1), (3, 1, 0b11, -1), (4, 1, 0, -1), (5, 0, 0, 3)]
    *found, _, _ = line(rows)
    assert [row[:2] for row in found] == [(1, 8), (1, 0), (0b11, 0), (1, 8), (0, 0)]


def test_a_hold_that_moves_is_never_missed(run_tool):
    done = run_tool("TurnsTool", "moves", "2000000")
    assert done.returncode == 0, done.stdout + done.stderr


BEHIND = [[10, 0, BEST_EFFORT, 900]]
"""Model 0 runs; the others wait behind it."""


def _turns(order, exclusive, models, events, strict=Order.CONCURRENT):
    return [strict, order, exclusive, models, events]


CASES = {
    "concurrent": (
        _turns(0, 0, [[1, 0]] * 3, [*BEHIND, [11, 1, BEST_EFFORT, 500], [12, 2, STRICT, 500]]),
        [0, 1, 2],
    ),
    "the earliest arrival": (
        _turns(
            Order.FIFO,
            0,
            [[1, 0]] * 3,
            [*BEHIND, [11, 1, 1, 900], [12, 2, 1, 500], [13, 0, 1, 100], [20, 0], [21, 1], [22, 2]],
        ),
        [0, 1, 2, 0],
    ),
    "the earliest deadline": (
        _turns(
            Order.EDF,
            0,
            [[1, 0]] * 3,
            [*BEHIND, [11, 1, 1, 900], [12, 2, 1, 500], [13, 0, 1, 700], [20, 0], [21, 2], [22, 0]],
        ),
        [0, 2, 0, 1],
    ),
    "in turn": (
        _turns(
            Order.ROUND_ROBIN,
            0,
            [[1, 0]] * 3,
            [
                *BEHIND,
                *([11 + i, 0, 1, 900] for i in range(3)),
                *([14 + i, 1 + i % 2, 1, 900] for i in range(4)),
                [20, 0],
                [21, 1],
                [22, 2],
                [23, 0],
                [24, 1],
                [25, 2],
                [26, 0],
            ],
        ),
        [0, 1, 2, 0, 1, 2, 0, 0],
    ),
    "whoever has waited too long": (
        # Model 0 ran last, but its request is older than its bound when model 1 asks as well.
        _turns(
            Order.ROUND_ROBIN,
            0,
            [[1, 50], [1, 500]],
            [*BEHIND, [11, 0, 1, 900], [90, 1, 1, 900], [100, 0], [101, 0], [102, 1]],
        ),
        [0, 0, 1],
    ),
    "others' slices are nobody's business": (
        _turns(Order.FIFO, 0, [[1, 0], [2, 0], [3, 0]], [*BEHIND, [11, 1, 1, 9], [12, 2, 1, 9]]),
        [0, 1],
    ),
    "who waits for two slices is not overtaken on one of them": (
        _turns(
            Order.FIFO,
            0,
            [[1, 0], [3, 0], [2, 0]],
            [*BEHIND, [11, 1, 1, 9], [12, 2, 1, 9], [20, 0], [21, 1]],
        ),
        [0, 1, 2],
    ),
    "strict beside best effort": (
        _turns(Order.FIFO, 0, [[1, 0]] * 3, [*BEHIND, [11, 1, STRICT, 9], [12, 2, STRICT, 9]]),
        [0, 1, 2],
    ),
    "as many as there are CPUs for, and who is first is not overtaken": (
        # CPUs: two. Models 0, 1, 3 and 4 use one, model 2 uses both.
        _turns(
            Order.ROUND_ROBIN,
            0,
            [[3, 0, 1], [3, 0, 1], [3, 0, 2], [3, 0, 1], [3, 0, 1]],
            [
                *([10 + i, i, BEST_EFFORT, 900] for i in range(5)),
                [20, 0],
                [21, 1],
                [22, 2],
                [23, 3],
                [24, 4],
            ],
        ),
        [0, 1, 2, 3, 4],
    ),
    "two at a time of three": (
        _turns(
            Order.ROUND_ROBIN,
            0,
            [[3, 0, 1]] * 3,
            [
                *([10 + i, i, BEST_EFFORT, 900] for i in range(3)),
                [20, 1],
                [21, 1, BEST_EFFORT, 900],
            ],
        ),
        [0, 1, 2],
    ),
    "a worker that ends makes room though another one of its model runs on": (
        _turns(
            Order.ROUND_ROBIN,
            0,
            [[3, 0, 1, 2], [3, 0, 1]],
            [*BEHIND, [11, 0, BEST_EFFORT, 900], [12, 1, BEST_EFFORT, 900], [20, 0]],
        ),
        [0, 0, 1],
    ),
    "who is asked for twice in one decision is counted once": (
        # CPUs: three. Model 0 uses one and goes on, model 1 two; then two workers of model 2 fit.
        _turns(
            Order.ROUND_ROBIN,
            0,
            [[7, 0, 1], [7, 0, 2], [7, 0, 1, 3]],
            [
                *([10 + i, i, BEST_EFFORT, 900] for i in range(3)),
                [13, 2, BEST_EFFORT, 900],
                [20, 1],
            ],
        ),
        [0, 1, 2, 2],
    ),
    "exclusive: a model's own best effort does not go before its strict requests": (
        _turns(
            Order.ROUND_ROBIN,
            1,
            [[1, 0, 1, 2]],
            [*BEHIND, [11, 0, STRICT, 9], *([12 + i, 0, BEST_EFFORT, 900] for i in range(2))],
        ),
        [0],
    ),
    "strict in turn": (
        _turns(
            0,
            0,
            [[1, 0]] * 3,
            [[1, 0, STRICT, 9], [2, 1, STRICT, 99], [3, 2, STRICT, 50], [4, 0], [5, 2]],
            strict=Order.EDF,
        ),
        [0, 2, 1],
    ),
    "exclusive: strict first, but what runs is not stopped": (
        _turns(
            Order.ROUND_ROBIN,
            1,
            [[1, 0]] * 4,
            [
                *BEHIND,
                [11, 1, BEST_EFFORT, 9],
                [12, 2, STRICT, 99],
                [13, 3, STRICT, 9],
                [20, 0],
                [21, 2],
                [22, 3],
            ],
        ),
        [0, 2, 3, 1],
    ),
}


def test_models_take_turns_in_the_order_that_the_page_asks_for(lines):
    found = [x for x in lines("turns", [case for case, _ in CASES.values()]) if x[0] == "["]
    assert dict(zip(CASES, map(json.loads, found), strict=True)) == {
        name: starts for name, (_, starts) in CASES.items()
    }


@pytest.mark.parametrize("seed", [1, 2])
def test_no_turn_is_lost_or_taken_twice_in_random_runs(run_tool, seed):
    done = run_tool("TurnsTool", "random", seed, 3000)
    assert done.returncode == 0, done.stderr


def test_turns_hold_between_threads(run_tool):
    done = run_tool("TurnsTool", "threads", 4, 500)
    assert (done.returncode, done.stdout.split()[-1:], done.stderr) == (0, ["2000"], "")
