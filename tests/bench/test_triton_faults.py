"""What counts as lost behind Triton, and how memory is judged."""

from collections import Counter

import pytest


@pytest.fixture
def faults(script):
    pytest.importorskip("tritonclient")
    pytest.importorskip("torch")
    return script("triton_faults")


@pytest.mark.parametrize(
    ("phase", "lost"),
    [("quiet", 6), ("unload and load", 5), ("cancel storm", 4), ("kill -9 the host", 6)],
)
def test_only_what_the_phase_allows_is_not_lost(faults, phase, lost):
    ends = Counter({"right": 9, "wrong": 1, "unloaded": 1, "cancelled": 2, "no answer": 3})
    row = faults.row_of(phase, ends, 0.1)
    assert (row["requests"], row["lost"], row["wrong"]) == (16, lost, 1)


def test_the_slope_is_that_of_most_pairs_without_the_first_quarter(faults):
    rows = [{"s": 60.0 * i, "all": 100.0 if i > 2 else 10.0 * i} for i in range(12)]
    rows[7]["all"] = 400.0
    assert faults.slope(rows, "all") == 0


def test_the_rivals_soak_is_not_counted_as_ours(faults):
    soak = {"lost": 5, "wrong": 5, "requests": 5, "rss_slope": {"all": 3, "triton": 2}}
    ours = {"lost": 0, "wrong": 0, "requests": 7, "rss_slope": {"all": 1, "triton": 0.5}}
    rows = [{"lost": 1, "wrong": 2, "requests": 10}]
    rows += [{"side": "shunter", **ours}, {"side": "triton alone", **soak}]
    assert faults.headline(rows) == {
        "lost_requests": 1,
        "wrong_answers": 2,
        "requests": 17,
        "rss_slope": 1,
        "rss_slope_of_triton_itself": 0.5,
        "triton_alone_rss_slope": 3,
    }


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("[StatusCode.CANCELLED] Locally cancelled by application!", "cancelled"),
        ("[499] the client cancelled it", "cancelled"),
        ("[400] Request for unknown model: 'lenet' is not found", "unloaded"),
        ("[503] no worker has the model loaded", "Exception: [503] no worker has the model loaded"),
    ],
)
def test_errors_are_counted_by_what_they_say(script, faults, text, end):
    assert script("triton_callers").end_of(Exception(text)) == end
