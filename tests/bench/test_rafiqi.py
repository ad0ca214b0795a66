"""The paper's daemon, which the benchmark of the threshold compares with."""

import pytest


@pytest.fixture
def daemon(script, page, poke):
    poke(3, "slot_state", 1)
    poke(3, "registered_max_wait_us", 20_000)
    poke(3, "group_count", 1)
    poke(3, "arrivals", 100)
    return script("rafiqi").Daemon(page, 3)


def test_a_fixed_quantum_gives_the_papers_numbers(daemon, page, poke):
    seen, told = [], []
    for strict, best_effort in ((103, 6), (103, 15), (112, 15), (112, 15), (112, 15)):
        poke(3, "arrivals", strict)
        poke(3, "arrivals", best_effort, index=1)
        daemon.end_quantum()
        seen.append(daemon.value)
        told.append(page.read_commands(3)[0].threshold_fixed_milli)
    assert seen == [5.0, 7.0, 8.0, 4.0, 2.0]
    assert told == [1000 * value for value in seen]


def test_it_waits_as_registered_and_takes_back_what_others_wrote(daemon, page):
    commands = page.read_commands(3)[0]
    assert (commands.threshold_fixed_milli, commands.max_wait_us) == (1000, 20_000)
    page.write_commands(3, type(commands)(threshold_fixed_milli=9000))
    daemon.end_quantum()
    assert page.read_commands(3)[0].threshold_fixed_milli == 1000
