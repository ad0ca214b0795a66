"""Workers that are one process: how many batches they have at once, and whose is next."""

import subprocess
from pathlib import Path

import pytest

from shunter.batching.page.layout import Order
from shunter.nic_frontend import build

HERE = Path(__file__).parent
SETS = "sets/sets", "sets/order", "sets/turns"
STRICT, BEST_EFFORT = 0, 1
SECOND = 1000
"""Of the times here; best effort counts as strict after it."""


@pytest.fixture(scope="module")
def program(compile_c):
    """set_events.c under the sanitizers: what a set says to events."""
    found = compile_c(HERE / "set_events.c", SETS)

    def run(*events):
        text = "\n".join(" ".join(map(str, event)) for event in events)
        done = subprocess.run(
            [str(found)], input=text, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout.splitlines()

    return run


def joined(*models, number=1, yields=()):
    """Members of a set, each of the model of that number; of ``yields`` batches stand still."""
    return [
        ("J", member, number, model, int(member in yields)) for member, model in enumerate(models)
    ]


def wants(member, priority=STRICT, *, since=0, now=0, ageing=SECOND, deadline=()):
    """A decision that asks, and gives if it can."""
    return [
        ("A", member, priority, since, ageing, now, *deadline),
        ("G", member, priority, now),
        ("S", member, int(priority == STRICT), int(priority == BEST_EFFORT), now),
    ]


def has_enough(member, now=0):
    """A decision of whom nothing waits."""
    return ("S", member, 0, 0, now)


def ends(member, now=0, priority=STRICT):
    return ("E", member, now, now, 0, priority)


def calls(said):
    return [int(line.split()[1]) for line in said if line.startswith("call")]


def asks(said):
    return [int(line.split()[1]) for line in said if line.startswith("ask")]


def test_a_set_has_room_for_two_batches_of_whichever_models(program):
    said = program(*joined(0, 1, 2), *wants(0), *wants(1), *wants(2), ends(1))
    assert asks(said) == [0, 1, -1] and calls(said) == [2]


def test_sets_share_no_room(program):
    others = [("J", member, member, member) for member in range(1, 6)]
    said = program(*others, *(each for member in range(1, 6) for each in wants(member)))
    assert asks(said) == [0] * 5


@pytest.mark.parametrize(
    ("waiting", "order"),
    [
        ([(2, STRICT, 5), (3, STRICT, 1)], [3, 2]),  # who has come first, while nobody had a turn
        ([(2, BEST_EFFORT, 1), (3, STRICT, 5)], [3, 2]),
        ([(2, BEST_EFFORT, 9), (3, BEST_EFFORT, 3), (4, STRICT, 9)], [4, 3, 2]),
        ([(0, STRICT, 1), (2, STRICT, 9)], [2, 0]),  # 0 had a turn just now
        ([(0, BEST_EFFORT, 1), (1, STRICT, 9), (2, BEST_EFFORT, 9)], [1, 2, 0]),
    ],
    ids=str,
)
def test_strict_goes_first_and_then_who_was_served_longest_ago(program, waiting, order):
    events = [*joined(0, 1, 2, 3, 4), *wants(0), *wants(1)]
    for member, priority, since in waiting:
        events += wants(member, priority, since=since, now=10)
    running, now = [0, 1], 11
    kinds = {member: priority for member, priority, _ in waiting}
    for member in order:
        events += [ends(running.pop(0), now), *wants(member, kinds[member], now=now)]
        events.append(has_enough(member, now))
        running.append(member)
        now += 1
    assert calls(program(*events)) == order


def test_who_was_not_called_does_not_overtake_who_was(program):
    ahead = [*joined(0, 1, 2, 3), *wants(0), *wants(1), *wants(2, since=1), ends(0)]
    said = program(*ahead, *wants(3, since=2), *wants(2, since=1), ends(1))
    assert asks(said) == [0, 1, -1, -1, 1] and calls(said) == [2, 3]


def test_both_who_are_next_may_go_when_there_is_room_for_both(program):
    ahead = [*joined(0, 1, 2, 3), *wants(0), *wants(1), *wants(2), *wants(3)]
    said = program(*ahead, ends(0), ends(1), *wants(3), *wants(2))
    assert calls(said) == [2, 3] and asks(said)[-2:] == [0, 1]


def test_who_is_called_and_does_not_want_it_any_more_lets_the_next_one_go(program):
    ahead = [*joined(0, 1, 2, 3), *wants(0), *wants(1), *wants(2, since=1), *wants(3, since=2)]
    assert calls(program(*ahead, ends(0), has_enough(2))) == [2, 3]
    waits_on = [("A", 2, STRICT, 1, 0, 0), ("S", 2, 1, 0, 0)]  # it asks, and gives nothing
    assert calls(program(*ahead, ends(0), *waits_on)) == [2, 3]


def test_strict_batches_have_room_beside_what_stands_still_for_them(program):
    ahead = [*joined(*range(7), yields=(0, 1, 2)), *wants(0, BEST_EFFORT), *wants(1, BEST_EFFORT)]
    ahead += [*wants(2, BEST_EFFORT), *wants(3), *wants(4), *wants(5), *wants(6, BEST_EFFORT)]
    said = program(*ahead, ends(3), *wants(5), has_enough(5), ends(0, 0, BEST_EFFORT))
    assert asks(said) == [0, 1, -1, 0, 1, -1, -1, 1] and calls(said) == [5]
    said = program(*ahead, ends(3), ends(4), *wants(5), has_enough(5), ends(5), ends(0), ends(1))
    assert calls(said) == [5, 2, 6]


def test_strict_batches_of_who_stands_still_pass_nobody(program):
    ahead = [*joined(0, 1, 2, yields=(0, 1, 2)), *wants(0, BEST_EFFORT), *wants(1, BEST_EFFORT)]
    assert asks(program(*ahead, *wants(2))) == [0, 1, -1]


def test_strict_batches_wait_for_what_does_not_stand_still(program):
    ahead = [*joined(0, 1, 2, 3, yields=(1,)), *wants(0, BEST_EFFORT), *wants(1, BEST_EFFORT)]
    assert asks(program(*ahead, *wants(2), *wants(3))) == [0, 1, 1, -1]


def test_best_effort_that_waited_for_long_has_the_next_room_where_strict_passes(program):
    ahead = [*joined(0, 1, 2, 3, yields=(2,)), *wants(0), *wants(1)]
    ahead += [*wants(2, BEST_EFFORT, now=SECOND), *wants(3, since=1, now=SECOND)]
    said = program(*ahead, ends(0, SECOND), *wants(2, BEST_EFFORT, now=SECOND), has_enough(2))
    assert calls(said) == [2, 3]


def test_of_a_batch_that_was_passed_it_is_not_known_how_long_it_took(program):
    ahead = [*joined(0, 1, 2, yields=(0, 1)), *wants(0, BEST_EFFORT, now=10)]
    ahead += [*wants(1, BEST_EFFORT, now=11), *wants(2, now=12)]
    said = program(*ahead, ("F", 0), ("F", 2), ("E", 2, 20, 21, 12), ("E", 0, 30, 31, 10))
    assert said[-4:] == ["first 10", "first 0", "end 1 12", "end 0 10"]
    said = program(*ahead, ("E", 0, 20, 21, 10), ("F", 2), ("F", 1), ("E", 2, 30, 31, 12))
    assert said[-3:] == ["first 21", "first 0", "end 1 20"]


@pytest.mark.parametrize(("now", "order"), [(SECOND - 1, [3]), (SECOND, [2])])
def test_best_effort_that_waits_for_long_counts_as_strict_once(program, now, order):
    ahead = [*joined(0, 1, 2, 3), *wants(0), *wants(1)]
    ahead += [*wants(2, BEST_EFFORT, since=0), *wants(3, since=1, now=now)]
    said = program(*ahead, ends(0, now))
    assert calls(said) == order
    if order == [2]:  # another batch of it waits for its turn again
        again = [*wants(2, BEST_EFFORT, now=now), *wants(2, BEST_EFFORT, now=now), ends(1, now)]
        assert calls(program(*ahead, ends(0, now), *again)) == [2, 3]


@pytest.mark.parametrize(("later", "order"), [(SECOND - 1, [0]), (SECOND, [2])])
def test_best_effort_whose_batch_took_long_counts_as_strict_so_long_after_it(
    program, later, order
):
    ahead = [*joined(0, 1, 2), *wants(2, BEST_EFFORT), *wants(0)]
    ahead += [ends(2, 5 * SECOND, BEST_EFFORT), *wants(1, now=5 * SECOND)]
    ahead += [*wants(2, BEST_EFFORT, now=5 * SECOND), *wants(0, since=1, now=5 * SECOND)]
    assert calls(program(*ahead, ends(1, 5 * SECOND + later))) == order


def test_best_effort_never_counts_as_strict_where_its_model_says_so(program):
    ahead = [*joined(0, 1, 2, 3), *wants(0), *wants(1)]
    ahead += [*wants(2, BEST_EFFORT, ageing=0), *wants(3, since=1, now=9 * SECOND)]
    assert calls(program(*ahead, ends(0, 9 * SECOND))) == [3]


def test_room_that_strict_requests_do_not_use_is_not_for_best_effort(program):
    """Strict ones of another model, which come meanwhile, go before it."""
    said = program(
        *(*joined(0, 1, 2), *wants(0)),
        ("A", 1, STRICT, 0, 0, 0),
        *wants(2),
        ("A", 1, BEST_EFFORT, 0, 0, 0),
        ("S", 1, 1, 1, 0),
    )
    assert asks(said) == [0, 1, -1, -1] and calls(said) == [2]


@pytest.mark.parametrize("goes", [("L", 0, 5), ends(0)])
def test_room_is_given_back_once_whether_the_batch_ends_or_its_worker_does(program, goes):
    ahead = [*joined(0, 1, 2, 3), *wants(0), *wants(1), *wants(2), *wants(3), goes]
    more = [] if goes[0] == "L" else [("L", 0, 6)]
    said = program(*ahead, *more, *wants(2), *wants(3))
    assert calls(said) == [2] and asks(said)[-2:] == [1, -1]


def test_who_leaves_in_the_midst_of_a_decision_gives_back_what_it_asked_for(program):
    ahead = [*joined(0, 1, 2), *wants(0), ("A", 1, STRICT, 0, 0, 0), *wants(2)]
    assert calls(program(*ahead, ("L", 1, 0))) == [2]


def test_a_new_worker_does_not_make_its_model_the_first(program):
    ahead = [*joined(0, 1, 2), *wants(0), *wants(1), *wants(2, since=2), ("J", 3, 1, 0)]
    assert calls(program(*ahead, *wants(3, since=1), ends(1))) == [2]


def test_a_batch_began_when_the_one_before_it_was_done(program):
    ahead = [*joined(0, 1, 2), *wants(0, now=10), *wants(1, now=12)]
    said = program(*ahead, ("E", 0, 20, 21, 10), ("E", 1, 30, 31, 12))
    assert said[-2:] == ["end 1 10", "end 1 20"]
    said = program(*ahead, ("E", 0, 20, 21, 10), *wants(2, now=25), ("E", 1, 30, 31, 12))
    assert said[-1] == "end 1 20"


def test_of_a_batch_that_ends_out_of_turn_it_is_not_known_when_it_began(program):
    ahead = [*joined(0, 1), *wants(0, now=10), *wants(1, now=12)]
    said = program(*ahead, ("E", 1, 20, 21, 12), ("E", 0, 30, 31, 10))
    assert said[-2:] == ["end 0 12", "end 1 20"]  # the second one ran first
    said = program(*ahead, ("E", 1, 30, 31, 12), ("E", 0, 20, 32, 10))
    assert said[-2:] == ["end 0 12", "end 0 10"]  # or was only heard of first


def test_since_when_a_batch_is_the_first(program):
    ahead = [*joined(0, 1), *wants(0, now=10), *wants(1, now=12)]
    said = program(*ahead, ("F", 0), ("F", 1), ("E", 0, 20, 21, 10), ("F", 0), ("F", 1))
    assert [line for line in said if line.startswith("first")] == [
        *("first 10", "first 0", "first 0", "first 21"),
    ]


# ---- turns


def rules(strict=Order.CONCURRENT, best_effort=Order.CONCURRENT, exclusive=0):
    return ("O", int(strict), int(best_effort), exclusive)


def at(*slices):
    """Members of a model each, that run there."""
    return [("V", member, each, member) for member, each in enumerate(slices)]


FIFO = rules(strict=Order.FIFO)
EXCLUSIVE = rules(exclusive=1)


def test_where_slices_overlap_one_model_runs(program):
    """And who waits for two places is not overtaken at one of them."""
    ahead = [FIFO, *at(1, 3, 2), *wants(0), *wants(1, since=1), *wants(2, since=2)]
    said = program(*ahead, ends(0), *wants(1), has_enough(1), ends(1))
    assert asks(said) == [0, -1, -1, 0] and calls(said) == [1, 2]


def test_models_that_do_not_overlap_run_at_once_and_so_do_the_workers_of_one(program):
    said = program(FIFO, *at(1, 2, 4), ("V", 3, 1, 0), *(w for i in range(4) for w in wants(i)))
    assert asks(said) == [0] * 4
    said = program(FIFO, *at(1, 1), ("V", 2, 1, 0), *wants(0), *wants(2), *wants(1), ends(0))
    assert asks(said) == [0, 0, -1] and calls(said) == []  # the other one runs still


def test_who_may_begin_is_in_the_others_way_before_it_does(program):
    said = program(FIFO, *at(1, 1), ("A", 0, 0, 0, 0, 0), *wants(1), has_enough(0))
    assert asks(said) == [0, -1] and calls(said) == [1]


@pytest.mark.parametrize(
    ("order", "waiting", "first"),
    [
        (Order.FIFO, [(1, 7, 20), (2, 5, 30)], 2),
        (Order.EDF, [(1, 7, 20), (2, 5, 30)], 1),
        (Order.EDF, [(1, 7, None), (2, 9, 30)], 2),
        (Order.EDF, [(1, 7, None), (2, 5, None)], 2),
        (Order.ROUND_ROBIN, [(2, 5, None), (0, 1, None)], 2),
    ],
    ids=str,
)
def test_turns_of_strict_models_are_in_the_order_that_is_wanted(program, order, waiting, first):
    events = [rules(strict=order), *at(1, 1, 1), *wants(0)]
    for member, since, deadline in waiting:
        limit = () if deadline is None else (deadline,)
        events += wants(member, since=since, now=10, deadline=limit)
    assert calls(program(*events, ends(0, 11)))[:1] == [first]


def test_nobody_takes_turns_where_nobody_asks_for_it_and_who_waits_goes_then(program):
    said = program(*at(1, 1), *wants(0), *wants(1), FIFO, ends(0), ends(1))
    assert asks(said) == [0, 0] and calls(said) == []
    said = program(FIFO, *at(1, 1), *wants(0), *wants(1), rules(), *wants(1), has_enough(1))
    assert asks(said) == [0, -1, 0] and calls(said) == [1]


def test_best_effort_takes_no_turns_unless_both_classes_do(program):
    """But it does not begin where strict requests of its model wait for theirs."""
    said = program(FIFO, *at(1, 1), *wants(0), *wants(1, BEST_EFFORT), *wants(0, BEST_EFFORT))
    assert asks(said) == [0, 0, 0]
    waits = [("A", 1, STRICT, 0, 0, 0), ("A", 1, BEST_EFFORT, 0, 0, 0), ("S", 1, 1, 1, 0)]
    said = program(FIFO, *at(1, 1), *wants(0), *waits, ends(0))
    assert asks(said) == [0, -1, -1] and calls(said) == [1]


def test_where_both_classes_take_turns_strict_goes_first_and_alone(program):
    ahead = [EXCLUSIVE, *at(1, 1, 1), *wants(0, BEST_EFFORT), *wants(1, BEST_EFFORT, since=1)]
    ahead += [*wants(0, since=2), *wants(2, since=3)]
    said = program(*ahead, ends(0, 9, BEST_EFFORT), *wants(0), has_enough(0), ends(0, 10))
    assert asks(said) == [0, -1, -1, -1, 0] and calls(said) == [0, 2]
    said = program(*ahead, ("L", 0, 9), ("L", 2, 9))
    assert calls(said) == [2, 1]


def test_best_effort_in_turn_goes_by_who_had_one_longest_ago_but_for_who_waits_for_long(program):
    turns = rules(best_effort=Order.ROUND_ROBIN, exclusive=1)
    ahead = [turns, *at(1, 1, 1), *wants(1, BEST_EFFORT), ends(1, 0, BEST_EFFORT)]
    ahead += [*wants(0, BEST_EFFORT), *wants(1, BEST_EFFORT, since=1)]
    waits = wants(2, BEST_EFFORT, since=2)
    assert calls(program(*ahead, *waits, ends(0, 5, BEST_EFFORT))) == [2]
    late = SECOND + 1
    assert calls(program(*ahead, *waits, ends(0, late, BEST_EFFORT))) == [1]


def test_who_leaves_gives_its_turn_to_others(program):
    said = program(FIFO, *at(1, 1, 1), *wants(0), *wants(1), *wants(2, since=1), ("L", 0, 1))
    assert calls(said) == [1]
    said = program(FIFO, *at(1, 1), ("A", 0, 0, 0, 0, 0), *wants(1), ("L", 0, 1))
    assert calls(said) == [1]


# ---- with dispatchers


DISPATCHER = (
    *("dispatch", "plan", "assign", "predict", "admission", "waiting", "batches", "workers"),
    *(f"forming/{each.stem}" for each in sorted((build.SOURCES[0] / "forming").glob("*.c"))),
    "telemetry/telemetry",
    *SETS,
)


@pytest.fixture(scope="module")
def story(compile_c):
    """set_story.c under the sanitizers."""
    return compile_c(HERE / "set_story.c", DISPATCHER)


@pytest.mark.parametrize("turns", [(), ("ordered",), ("exclusive",)], ids=str)
def test_in_any_order_of_events_nobody_is_forgotten_and_no_room_is_lost(story, turns):
    done = [0, 0, 0, 0]
    for seed in range(30):
        command = [str(story), str(seed), "4000", *turns]
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        assert found.returncode == 0, found.stdout + found.stderr[-2000:]
        done = [a + int(b) for a, b in zip(done, found.stdout.split(), strict=True)]
    assert min(done) > 50  # batches, calls, requests that were too late, that lost their workers


@pytest.mark.parametrize(
    ("own", "others", "full_ms", "other_ms", "rows"),
    [
        (STRICT, STRICT, 999, 9_999, 5),  # 4 ms + 5 x 1 ms: a lone one's 5 ms more than nothing
        (STRICT, STRICT, 0, 1, 8),  # not more than can be served
        (STRICT, STRICT, 1000, 1, 8),
        (STRICT, STRICT, 1, 0, 8),  # nobody else
        (STRICT, STRICT, 1, 10_000, 8),
        (STRICT, BEST_EFFORT, 1, 1, 8),  # strict requests do not pay for those
        (BEST_EFFORT, STRICT, 1, 1, 5),
        (BEST_EFFORT, BEST_EFFORT, 1, 1, 5),
    ],
)
def test_who_floods_its_process_has_short_batches_beside_others(
    flood, own, others, full_ms, other_ms, rows
):
    assert flood(own, others, full_ms, other_ms) == rows


def test_who_takes_turns_shares_no_process(flood):
    assert flood(STRICT, STRICT, 1, 1, "turns") == 8


@pytest.fixture(scope="module")
def flood(compile_c):
    """set_flood.c under the sanitizers: rows of a batch."""
    program = compile_c(HERE / "set_flood.c", DISPATCHER)

    def run(*arguments):
        command = [str(program), *map(str, arguments)]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    return run
