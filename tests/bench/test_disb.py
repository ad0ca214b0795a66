"""The DISB benchmark's networks and pure parts."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

NAMES = ("vgg19", "resnet152", "densenet201", "inception_v3", "distilbert")


@pytest.fixture(scope="session")
def models(script) -> ModuleType:
    return script("disb_models")


@pytest.mark.parametrize(
    ("name", "published", "leaves"),
    [
        ("vgg19", 143_667_240, 45),
        ("resnet152", 60_192_808, 364),
        ("densenet201", 20_013_928, 608),
        ("inception_v3", 23_834_568, 296),
        ("distilbert", 66_362_880, 57),
    ],
)
def test_networks_have_the_published_size(
    models: ModuleType, name: str, published: int, leaves: int
) -> None:
    network = models.skeleton(name)
    assert models.parameters(network) == published
    small = models.narrower(models.skeleton(name), models.SMALL[name]["width"])
    assert models.parameters(small) < published / 2
    assert len(_leaves(network)) == len(_leaves(small)) == leaves
    assert [type(a) for a in _leaves(network)] == [type(a) for a in _leaves(small)]


def _leaves(network: torch.nn.Module) -> list[torch.nn.Module]:
    return [each for each in network.modules() if not list(each.children())]


@pytest.mark.parametrize("name", NAMES)
def test_small_networks_run_and_are_always_the_same(models: ModuleType, name: str) -> None:
    given = {**models.SMALL[name], "width": 0.125}
    outputs = []
    for _ in range(2):
        network, example = models.build(name, **given)
        assert not network.training
        with torch.inference_mode():
            outputs.append(network(example))
    assert torch.equal(*outputs)
    assert torch.isfinite(outputs[0]).all()
    assert 1e-3 < outputs[0].std() < 1e3


def test_a_width_that_splits_a_channel_is_refused(models: ModuleType) -> None:
    with pytest.raises(ValueError, match=r"width 0\.3"):
        models.build("vgg19", width=0.3)


@pytest.fixture(scope="session")
def workloads(script) -> ModuleType:
    return script("disb_workloads")


@pytest.fixture(scope="session")
def rows(script) -> ModuleType:
    return script("disb_rows")


SERVICE_S = {"vgg19": 0.02, "resnet152": 0.03, "densenet201": 0.025, "inception_v3": 0.015}
SERVICE_S["distilbert"] = 0.01


@pytest.mark.parametrize(
    ("name", "strict", "best_effort", "busy"),
    [
        ("A", {"vgg19": 100}, 1, 0.3),
        ("B", {"vgg19": 220}, 1, 0.66),
        ("C", {"vgg19": 100}, 5, 0.3),
        ("D", dict.fromkeys(NAMES, 20), 5, 0.3),
        ("E", dict.fromkeys(NAMES, 20), 5, 0.3),
    ],
)
def test_workloads_are_those_of_the_paper_scaled(
    workloads: ModuleType, name: str, strict: dict, best_effort: int, busy: float
) -> None:
    workload = workloads.WORKLOADS[name]
    assert workload.rates() == strict
    assert len(workload.best_effort) == best_effort
    factor = workloads.scale(workload, SERVICE_S)
    due = workloads.times(workload, factor, 400.0, 0)
    found = sum(len(times) * SERVICE_S[model] for model, times in due.items()) / 400
    assert found == pytest.approx(busy, rel=0.05 if name == "E" else 0.01)
    assert all(((times >= 0) & (times < 400)).all() for times in due.values())


def test_periodic_clients_start_staggered(workloads: ModuleType) -> None:
    due = workloads.times(workloads.D, 0.5, 10.0, 3)
    starts = sorted(times[0] for times in due.values())
    assert starts == pytest.approx([0, 0.02, 0.04, 0.06, 0.08])
    assert all(np.allclose(np.diff(times), 0.1) for times in due.values())


def test_poisson_arrivals_differ_by_round_and_model_and_not_by_scheme(
    workloads: ModuleType,
) -> None:
    first, again, other = (workloads.times(workloads.E, 0.5, 10.0, n) for n in (0, 0, 1))
    assert all(np.array_equal(first[m], again[m]) for m in first)
    drawn = [tuple(times[:3]) for due in (first, other) for times in due.values()]
    assert len(set(drawn)) == 2 * len(first)


def trace(script):
    """A DISB trace: two strict models, one best-effort one."""
    task = script("arrivals").DisbTask
    return [
        task("a_rt", "vgg19-imagenet", "strict", np.array([0.0, 1.0, 2.5, 8.0]), 10.0),
        task("b_rt", "inceptionv3-imagenet", "strict", np.array([4.0]), 10.0),
        task("c_be", "distilbert", "best_effort", None, 10.0),
    ]


def test_a_trace_is_stretched_and_taken_piece_by_piece(script, workloads: ModuleType) -> None:
    real = workloads.from_trace(trace(script))
    assert real.strict == ("vgg19", "inception_v3")
    assert real.best_effort == ("distilbert",)
    assert real.rates() == {"vgg19": 0.4, "inception_v3": 0.1}
    pieces = [workloads.times(real, 0.5, 4.0, number) for number in range(6)]
    assert [p["vgg19"].tolist() for p in pieces] == [[0, 2], [1], [], [], [0], [0, 2]]
    whole = [t + 4 * n for n, piece in enumerate(pieces[:5]) for t in piece["vgg19"]]
    assert whole == [0, 2, 5, 16]


def test_a_trace_with_an_unknown_model_is_refused(script, workloads: ModuleType) -> None:
    task = script("arrivals").DisbTask("x_rt", "alexnet", "strict", np.array([1.0]), 5.0)
    with pytest.raises(ValueError, match="alexnet"):
        workloads.from_trace([task])


def test_arrivals_like_those_of_the_trace_are_made_from_a_seed(script, workloads) -> None:
    drive = script("disb_drive")
    found, again, other = drive.trace(), drive.trace(), drive.trace(seed=2)
    assert sorted(found) == sorted(NAMES)
    assert all(np.array_equal(found[name], again[name]) for name in NAMES)
    assert not np.array_equal(found["vgg19"], other["vgg19"])
    assert 40 < sum(map(len, found.values())) / drive.SECONDS < 50
    spread = {name: np.diff(times).std() / np.diff(times).mean() for name, times in found.items()}
    assert all((np.diff(times) >= 0).all() for times in found.values())
    assert max(spread[name] for name in ("resnet152", "inception_v3", "densenet201")) < 0.3
    assert min(spread["vgg19"], spread["distilbert"]) > 1.5
    load = sum(len(found[name]) * SERVICE_S[name] for name in NAMES) / drive.SECONDS
    assert workloads.scale(workloads.DRIVE, SERVICE_S) * load == pytest.approx(0.3)


def test_every_round_pairs_rt_only_with_the_subject(workloads: ModuleType) -> None:
    schemes = ("rt_only", "shunter", "kernel", "seq", "concurrent")
    runs = list(workloads.plan("AB", 6, schemes))
    assert len(set(runs)) == len(runs)
    for name in "AB":
        for number in range(6):
            mine = [r.scheme for r in runs if (r.workload, r.number) == (name, number)]
            assert sorted(mine) == sorted(schemes[:3] if number % 2 else schemes)
    firsts = [next(r.scheme for r in runs if r.number == n and r.workload == "A") for n in range(6)]
    assert set(firsts) >= {"rt_only", "shunter", "kernel"}
    assert [r.number for r in runs] == sorted(r.number for r in runs)


def sample(scheme: str, number: int, strict_ms: list[float], **more) -> dict:
    given = {"workload": "A", "scheme": scheme, "round": number, "strict_ms": strict_ms}
    given |= {"seconds": 2.0, "idle_share": 0.7, "strict_faults": {}, "jvm_cores": 0.1}
    given["strict_client"] = {"cores": 0.01, "late_p99_ms": 0.1}
    given |= dict.fromkeys(
        ("preemptions", "drops", "parked_ms", "yield_us_sum", "restore_us_sum"), 0
    )
    return {**given, "yield_worst_us": 0, **more}


def test_rows_compare_with_rt_only_of_the_same_round(rows: ModuleType) -> None:
    found = []
    for number, base in enumerate((10.0, 20.0)):
        found.append(sample("rt_only", number, [base, base]))
        load = {"best_effort_done": {"vgg19": 63}, "work_per_s": 0.63, "solo_work_per_s": 1.0}
        load |= {"best_effort_client_cores": 0.01, "best_effort_faults": {"wrong": 1, "503": 2}}
        load |= {"preemptions": 4, "yield_us_sum": 40, "restore_us_sum": 8, "yield_worst_us": 30}
        found.append(sample("shunter", number, [base * 1.1] * 2, **load))
    # Without RT-only in its round there is nothing to compare it with.
    found.append(sample("shunter", 2, [1e6], **load))
    alone, ours = rows.summarise(found)
    assert (alone["scheme"], alone["mean_ms"], alone["p99_ms"]) == ("rt_only", 15.0, 20.0)
    assert ours["mean_overhead"] == pytest.approx(0.1)
    assert ours["p99_overhead_interval"] == pytest.approx((0.1, 0.1))
    assert ours["share_of_idle"] == pytest.approx(0.9)
    assert ours["throughput_vs_rt_only"] == pytest.approx(65 / 2)
    assert (ours["wrong_answers"], ours["failed"]) == (3, 6)
    assert (ours["preemptions"], ours["yield_mean_us"], ours["restore_mean_us"]) == (8, 10, 2)
    assert ours["p99_ms_interval"][0] <= ours["p99_ms"] <= ours["p99_ms_interval"][1]
    headline = rows.headline([alone, ours], "shunter")
    assert headline["strict_mean_overhead_worst"] == pytest.approx(0.1)
    assert headline["strict_p99_overhead_worst_interval"] == pytest.approx((0.1, 0.1))
    assert headline["best_effort_share_of_idle_worst"] == pytest.approx(0.9)
    assert headline["wrong_answers"] == 3
    assert not any(key.startswith("kernel") for key in headline)


def test_the_headline_is_the_worst_of_all_workloads_and_has_the_kernel_beside(
    rows: ModuleType,
) -> None:
    found = []
    for workload, scheme, over in (
        ("A", "shunter", 0.1),
        ("B", "shunter", 0.3),
        ("A", "kernel", 0.2),
        ("B", "kernel", 0.05),
    ):
        row = {"workload": workload, "scheme": scheme, "mean_overhead": over, "p99_overhead": -over}
        row |= {"share_of_idle": 1 - over, "throughput_vs_rt_only": 10 * over, "rounds": 3}
        row |= {f"{key}_interval": (0, 1) for key in ("mean_overhead", "p99_overhead")}
        found.append(row | {"share_of_idle_interval": (0, 1), "wrong_answers": 1, "failed": 2})
    headline = rows.headline(found, "shunter")
    assert headline["strict_mean_overhead_worst"] == 0.3
    assert headline["strict_mean_overhead_worst_workload"] == "B"
    assert headline["strict_p99_overhead_worst"] == -0.1
    assert headline["best_effort_share_of_idle_worst"] == pytest.approx(0.7)
    assert headline["throughput_vs_rt_only"] == pytest.approx(3**0.5)
    assert headline["kernel_strict_mean_overhead_worst"] == 0.2
    assert headline["kernel_strict_p99_overhead_worst"] == -0.05
    assert headline["kernel_best_effort_share_of_idle_worst"] == pytest.approx(0.8)
    assert (headline["workloads"], headline["rounds"]) == ("A B", 3)
    assert (headline["wrong_answers"], headline["failed"]) == (4, 8)


def test_rounds_without_answers_are_counted_and_compared_with_nothing(rows: ModuleType) -> None:
    none = {"strict_client": {"cores": 0.01, "late_p99_ms": None}}
    load = {"best_effort_done": {"vgg19": 63}, "work_per_s": 0.63, "solo_work_per_s": 1.0}
    load |= {"best_effort_client_cores": 0.01}
    found = [sample("rt_only", 0, [], **none), sample("shunter", 0, [], **load, **none)]
    alone, ours = rows.summarise(found)
    assert (alone["requests"], alone["p99_ms"]) == (0, np.inf)
    assert (ours["p99_overhead"], ours["throughput_vs_rt_only"]) == (np.inf, np.inf)
    found += [sample("rt_only", 1, [10.0]), sample("shunter", 1, [11.0], **load)]
    alone, ours = rows.summarise(found)
    assert (alone["requests"], alone["p99_ms"], alone["strict_client_late_p99_ms"]) == (1, 10, 0.1)
    assert ours["mean_overhead"] == pytest.approx(0.1)


@given(st.lists(st.floats(0.1, 1e4), min_size=1, max_size=300), st.sampled_from((0.5, 0.99, 0.999)))
def test_a_quantile_is_the_smallest_that_so_many_do_not_exceed(
    rows: ModuleType, values: list[float], share: float
) -> None:
    found = rows.quantile(values, share)
    assert found in values
    assert sum(v <= found for v in values) >= share * len(values)
    assert sum(v < found for v in values) < share * len(values)
