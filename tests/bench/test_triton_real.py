"""Settings, requests, selections and claims of the Triton benchmarks on real models."""

import json

import numpy as np
import pytest


@pytest.fixture
def modules(script):
    """Of bench/ that these scripts need."""
    for each in ("psutil", "torch", "sklearn"):
        pytest.importorskip(each)
    return script


def test_a_request_is_json_of_one_length_and_the_bytes_of_its_tensor(modules):
    real = modules("triton_real")
    for x in (np.arange(3), np.arange(300)):
        found = real.body("ids", x, {"slo_class": "strict", "deadline_ms": 100})
        head = json.loads(found[: real.HEAD])
        assert head["inputs"][0]["shape"] == [1, len(x)]
        assert head["parameters"]["deadline_ms"] == 100
        assert found[real.HEAD :] == x.tobytes()
    with pytest.raises(ValueError, match="JSON"):
        real.body("x" * 400, x, {})


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({}, ["max_queue_delay_microseconds: 7"]),
        ({"timeout_us": 9}, ["default_timeout_microseconds: 9", "max_queue_size: 0"]),
        ({"queue": 5, "priorities": True}, ["priority_levels: 2", "max_queue_size: 5"]),
    ],
)
def test_a_setting_says_its_queue_policy_only_when_it_has_one(modules, settings, parts):
    text = modules("triton_real").Setting(8, 2, 7, **settings).batching()
    assert all(part in text for part in parts)
    assert text.count("{") == text.count("}")
    assert ("default_queue_policy" in text) == bool(settings)


def test_near_equals_are_told_apart_by_their_p99(modules):
    slo, real = modules("triton_slo"), modules("triton_real")
    fast, slow = real.Setting(8, 2, 0), real.Setting(32, 2, 0)
    rows = [
        {"setting": real.setting_row(setting), "share": share, "goodput_per_s": rate, "p99_ms": p99}
        for setting, share, rate, p99 in (
            (slow, 0.2, 100.0, 90.0),
            (fast, 0.2, 99.8, 20.0),
            (slow, 1.2, 80.0, 90.0),
            (fast, 1.2, 50.0, None),
        )
    ]
    assert [slo.best(rows, share) for share in (0.2, 1.2)] == [fast, slow]


def test_the_claims_of_the_slo_are_those_of_the_worst_rate(modules):
    slo = modules("triton_slo")
    ours = {"ratio": 1.2, "best_effort_share": 0.9}
    theirs = {"ratio": 2.5, "best_effort_share": 1.0}
    rows = [{"ratio": {"median": each}} for each in (1.5, 1.01, 3.0)]
    assert slo.headline([*rows, {"shunter": ours, "triton": theirs}]) == {
        "worst_goodput_vs_best_static": 1.01,
        "strict_p99_overload_vs_alone": 1.2,
        "strict_p99_triton_priority_vs_alone": 2.5,
        "best_effort_share": 0.9,
        "triton_best_effort_share": 1.0,
    }


def test_the_brute_force_is_model_analyzers_default_search(modules):
    packrat = modules("triton_packrat")
    found = packrat.brute_force()
    assert len(set(found)) == 5 * 8
    assert {s.instances for s in found} == {1, 2, 3, 4, 5}
    assert max(s.batch for s in found) == 128
    assert all(s.threads == max(1, packrat.CORES // s.instances) for s in found)


def test_the_best_of_the_brute_force_is_that_of_the_number_of_clients(modules):
    packrat, real = modules("triton_packrat"), modules("triton_real")
    few, many = real.Setting(4, 2, 0), real.Setting(32, 2, 0)
    rows = [
        {"setting": real.setting_row(setting), "clients": clients, "rate": rate}
        for setting, clients, rate in ((few, 4, 9), (many, 4, 8), (few, 32, 8), (many, 32, 9))
    ]
    assert [packrat.best(rows, clients) for clients in (4, 32)] == [few, many]


def test_a_report_of_perf_analyzer_is_a_row(script):
    pytest.importorskip("psutil")
    report = (
        "Concurrency,Inferences/Second,Client Send,p50 latency,p90 latency,p99 latency\n"
        "8,1234.5,3,100,200,400\n"
    )
    assert script("rivals.perf_analyzer").row_of(report, 2) == {
        "rps": 1234.5,
        "requests": 2469,
        "failed": 0,
        "p50_us": 100,
        "p99_us": 400,
    }
