import pytest

from shunter.batching.page import front_end_page
from shunter.batching.page.control_page import ControlPage
from shunter.batching.page.layout import COUNTER_COUNT, HEADER_FIELDS
from shunter.batching.page.records import (
    MAX_COUNT,
    FrontEndState,
    NetworkTelemetry,
    SlotNetwork,
)

STATE = FrontEndState(1, 2, 3, 4, 5, 6, 7, 8)


def test_a_new_page_has_no_front_end(page):
    assert front_end_page.read(page) == (FrontEndState(), {})
    assert front_end_page.read_network(page, 127) == SlotNetwork()


def test_what_is_written_is_read(page):
    names = tuple(f"counter_number_{i:09d}" for i in range(COUNTER_COUNT))
    front_end_page.write_names(page, names)
    assert front_end_page.read(page).counters == dict.fromkeys(names, 0)
    front_end_page.write(page, STATE, tuple(range(COUNTER_COUNT)))
    expected = {name: i for i, name in enumerate(names)}
    assert front_end_page.read(page) == (STATE, expected)
    network = SlotNetwork(1, 2, 3, 4, 5, 6)
    front_end_page.write_network(page, 127, network)
    assert front_end_page.read_network(page, 127) == network
    assert front_end_page.read_network(page, 126) == SlotNetwork()
    telemetry = NetworkTelemetry(network_answered=(1, 2), network_batch_requests=3)
    front_end_page.write_network(page, 127, network, telemetry)
    assert front_end_page.read_telemetry(page, 127) == telemetry
    front_end_page.write_network(page, 127, network)
    assert front_end_page.read_telemetry(page, 127) == NetworkTelemetry()
    assert front_end_page.read_network(page, 127) == network


def test_the_next_front_end_begins_with_its_own_names(page):
    front_end_page.write_names(page, ("a", "b"))
    front_end_page.write(page, STATE, (7, 1 << 64))
    assert front_end_page.read(page).counters == {"a": 7, "b": MAX_COUNT}
    front_end_page.write_names(page, ("c",))
    assert front_end_page.read(page).counters == {"c": 0}


@pytest.mark.parametrize("names", [("x" * 25,), ("x",) * 65])
def test_names_that_do_not_fit_are_an_error(page, names):
    with pytest.raises(ValueError, match="at most 64 names of at most 24 bytes"):
        front_end_page.write_names(page, names)
    assert front_end_page.read(page).counters == {}


@pytest.mark.parametrize("count", [-1, 65, 1 << 62])
def test_a_nonsense_count_is_cut(page, count):
    page.words[HEADER_FIELDS["front_end_counter_count"].offset // 8] = count
    assert len(front_end_page.read(page).counters) <= COUNTER_COUNT


def test_a_page_has_one_front_end(page, page_path):
    with ControlPage.attach(page_path) as other:
        assert front_end_page.claim(page)
        assert not front_end_page.claim(other)
    with ControlPage.attach(page_path) as other:
        assert not front_end_page.claim(other)
        page.close()
        assert front_end_page.claim(other)
