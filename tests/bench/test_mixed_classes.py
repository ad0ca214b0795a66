"""The figures of strict requests beside best effort."""

import pytest

KEYS = (
    *("alone_p50_ms", "alone_p99_ms", "mixed_p50_ms", "batch_ms", "excess_batches"),
    *("mixed_vs_alone", "best_effort_per_s", "best_effort_share"),
)
"""Of a sample, beside the strict p99."""


@pytest.fixture(scope="module")
def mixed(script):
    return script("mixed_classes")


def row(side, p99, **more):
    found = {"side": side, "mixed_p99_ms": p99, "mixed_vs_alone": p99 / 20}
    return {**found, "best_effort_share": 0.5, "excess_batches": 0.3, **more}


def test_each_setting_of_ours_meets_the_best_of_each_rival(mixed):
    rows = [
        *(row(mixed.OURS[""], 80), row(mixed.OURS["_grouped"], 40, best_effort_share=0.6)),
        *(row("stock, batches of 16", 200), row("stock, batches of 4", 160)),
        *(row("triton, priorities, batches of 16", 100), row("triton, batches of 4", 50)),
    ]
    assert mixed.headline(rows) == {
        "strict_p99_excess_batches": 0.3,
        "best_effort_share": 0.5,
        "strict_p99_vs_alone": 4,
        "strict_p99_vs_stock": 0.5,
        "strict_p99_vs_triton_priority": 1.6,
        "best_effort_share_grouped": 0.6,
        "strict_p99_grouped_vs_alone": 2,
        "strict_p99_grouped_vs_stock": 0.25,
        "strict_p99_grouped_vs_triton_priority": 0.8,
    }


def test_without_rivals_there_is_nothing_about_them(mixed):
    found = mixed.headline([row("shunter", 80)])
    assert set(found) == {"strict_p99_excess_batches", "best_effort_share", "strict_p99_vs_alone"}


def test_the_first_round_of_each_side_stands_beside_the_others(mixed):
    p99s = {"shunter": [90, 30, 40, 50], "two tritons": [10, 60, 60, 60]}
    samples = [
        {**dict.fromkeys(KEYS, 1.0), "side": side, "mixed_p99_ms": ms}
        for ms_of_round in zip(*p99s.values(), strict=True)
        for side, ms in zip(p99s, ms_of_round, strict=True)
    ]
    found = [
        (row["side"], row["first_round_mixed_p99_ms"], row["mixed_p99_ms"])
        for row in mixed.summarise(samples)
    ]
    assert found == [("shunter", 90, 40), ("two tritons", 10, 60)]
