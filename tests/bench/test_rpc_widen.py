"""A rival's setting is the best one: no axis is left before its rate falls."""

import pytest


@pytest.fixture
def widen(script):
    return script("rpc.widen").widen


def counted(rate):
    """The rate, and the settings it was asked for."""
    asked = []

    def measured(setting):
        asked.append(tuple(setting.values()))
        return rate(**setting)

    return measured, asked


def test_each_axis_goes_as_far_as_the_rate_rises(widen):
    rate, asked = counted(lambda streams, batch: min(streams, 8) * min(batch, 4) - streams / 100)
    best, found = widen(rate, {"streams": (1, 2, 4, 8, 16, 32, 64), "batch": (1, 2, 4, 8)})
    assert best == {"streams": 8, "batch": 4}
    assert found == pytest.approx(8 * 4 - 0.08)
    assert (64, 1) not in asked  # two in a row were worse
    assert len(asked) == len(set(asked))


def test_one_worse_value_may_be_scatter(widen):
    rates = {1: 10, 2: 9, 4: 20, 8: 5, 16: 5, 32: 99}
    best, found = widen(lambda s: rates[s["streams"]], {"streams": tuple(rates)})
    assert (best, found) == ({"streams": 4}, 20)


def test_an_axis_that_needs_another_is_tried_again(widen):
    # Streams are of use only with a batch.
    best, _ = widen(
        lambda s: s["streams"] * s["batch"] if s["batch"] > 1 else 1 / s["streams"],
        {"streams": (1, 2, 4), "batch": (1, 8)},
    )
    assert best == {"streams": 4, "batch": 8}
