"""The micro benchmark of Packrat: a handler that sleeps, invented profiles, the networks."""

import itertools
import json
import math
import os
import sys
from dataclasses import replace

import pytest
import torch

from shunter.allocator.cpus.discovery import read_topology
from shunter.allocator.planning.configuration import InstanceGroup, parse_configuration
from shunter.allocator.planning.measurement import Effort
from shunter.allocator.planning.profile import Cell, Profile
from shunter.plugins.profiling.profiles import provenance_here
from shunter.plugins.torchserve.archives import unpack

pytest.importorskip("ts")

HANDLER = """
import json
import os
import time


class Handler:
    def initialize(self, context):
        self.ms = context.model_yaml_config["handler"]["ms"]

    def handle(self, data, context):
        begin = time.monotonic()
        time.sleep(self.ms / 1e3 * len(data))
        about = {"pid": os.getpid(), "cores": sorted(os.sched_getaffinity(0)), "batch": len(data)}
        with open(os.environ["SLEEPER_LOG"], "a") as log:
            print(json.dumps({**about, "begin": begin, "end": time.monotonic()}), file=log)
        return ["done"] * len(data)
"""
EFFORT = Effort(precision=0.5, most=6, seconds=0.2)
BATCHES = (1, 2, 4)
PIECE_MS = 100
"""Of one request. Two workers that are told at once overlap, however late each of them begins."""
needs_two_cores = pytest.mark.skipif(read_topology().cores < 2, reason="needs two cores")


@pytest.fixture(scope="module")
def micro(script):
    return script("packrat_micro")


@pytest.fixture(scope="module")
def cost(script):
    return script("profile_cost")


@pytest.fixture
def sleeper(tmp_path):
    """A model whose requests are run one after the other, however many threads there are."""
    folder = tmp_path / "sleeper"
    folder.mkdir()
    (folder / "handler.py").write_text(HANDLER)
    (folder / "model-config.yaml").write_text("batchSize: 8\n")
    return folder


def overlap(one, other):
    return one["begin"] < other["end"] and other["begin"] < one["end"]


@pytest.mark.slow
@needs_two_cores
def test_the_choice_and_both_baselines_run_their_batches_in_turns(
    micro, sleeper, tmp_path, monkeypatch
):
    path = tmp_path / "log"
    monkeypatch.setenv("SLEEPER_LOG", str(path))
    topology, threads = micro.node(2)
    archive = micro.pack_model(sleeper, tmp_path / "store", {"ms": PIECE_MS})
    # Invented: measured beside other work it would lead to another choice now and then.
    ms = {(t, b): PIECE_MS * b for t in range(1, threads + 1) for b in BATCHES}
    cells = {key: Cell(*key, each, each, each, runs=9) for key, each in ms.items()}
    profile = Profile(provenance_here(archive), threads, max(BATCHES), "exhaustive", cells)
    steps = []
    measured = list(
        micro.measure_model(
            unpack(archive, tmp_path / "unpacked"),
            profile.finished(None),
            topology,
            micro.Plan(BATCHES, rounds=2, seconds=0.02),
            steps.append,
        )
    )
    assert steps == [f"sleeper, batch {batch}" for batch in BATCHES]

    rows, headline = micro.summarise(measured)
    by_batch = {row["batch"]: row for row in rows}
    for batch, row in by_batch.items():
        # A second core is of no use to one instance, and halves the work of two; for a lone
        # request both baselines are as good.
        assert row["same"] in ([["one_per_core"]] if batch > 1 else [["one_per_core"], ["fat"]])
        assert row[f"vs_{row['same'][0]}"]["median"] == 1
        assert row["fat"]["configuration"] == f"1x2x{batch}"
        assert row["fat"]["ms"] >= PIECE_MS * batch
        assert row["chosen"]["ms"] >= PIECE_MS * math.ceil(batch / 2)
        assert row["fat"]["predicted_ms"] >= PIECE_MS * batch
        assert row["vs_fat"]["pairs"] == 2
    assert by_batch[4]["chosen"]["configuration"] == "2x1x2"
    assert set(headline) == {"worst_vs_better_baseline", "geomean_vs_fat", "mean_speedup_sleeper"}

    runs = [json.loads(line) for line in path.read_text().splitlines()]
    places = {run["pid"]: tuple(run["cores"]) for run in runs}
    everything = tuple(cpu.id for cpu in topology.cpus)
    # Three processes serve all batch sizes: one on both cores, one on each.
    assert sorted(places.values()) == sorted([everything, *((cpu,) for cpu in everything)])
    fat, thin = (
        [run for run in runs if (tuple(run["cores"]) == everything) == wide]
        for wide in (True, False)
    )
    assert not any(overlap(one, other) for one, other in itertools.product(fat, thin))
    of_both = [run for run in thin if run["batch"] == 2]
    assert any(overlap(*pair) for pair in itertools.combinations(of_both, 2))
    assert {run["batch"] for run in fat} == {1, 2, 4}
    assert {run["batch"] for run in thin} == {1, 2}


def test_a_profile_of_another_archive_is_begun_anew(micro, sleeper, tmp_path, monkeypatch):
    monkeypatch.setenv("SLEEPER_LOG", os.devnull)
    topology, _ = micro.node(1)
    path = tmp_path / "p.profile.json"
    slow, fast = (
        micro.pack_model(sleeper, tmp_path / name, {"ms": ms})
        for name, ms in (("slow", 30), ("fast", 1))
    )
    task = {"threads": 1, "batch": 1, "effort": EFFORT}
    first = micro.profile_model(slow, path, topology, task)
    assert micro.profile_model(slow, path, topology, task).cells == first.cells
    assert micro.fitting_profile(fast, path, topology) is None
    second = micro.profile_model(fast, path, topology, task)
    assert second.provenance.model_hash != first.provenance.model_hash
    assert second.cells != first.cells


def test_more_threads_than_any_node_has_are_refused(micro):
    with pytest.raises(SystemExit, match="no NUMA node of this host has 8000 CPUs"):
        micro.node(8000)


@pytest.mark.parametrize(
    ("batch", "thin"), [(1, "1x1x1"), (5, "5x1x1"), (16, "16x1x1"), (20, "12x1x1,4x1x2")]
)
def test_the_baselines_are_one_wide_instance_and_one_on_each_core(micro, cost, batch, thin):
    sides = micro.configurations(cost.synthetic_profile("barriers"), batch)
    assert sides["fat"] == (InstanceGroup(1, 16, batch),)
    assert sides["one_per_core"] == parse_configuration(thin)


@pytest.mark.parametrize("text", ["1x8x32,2x4x16", "3x5x3", "1x2x8,4x1x2"])
def test_the_shares_of_a_batch_are_within_the_configuration_and_sum_to_it(micro, text):
    configuration = parse_configuration(text)
    room = sum(group.instances * group.batch for group in configuration)
    largest = {group.threads: group.batch for group in configuration}
    for batch in range(1, room + 1):
        found = micro.shares(configuration, batch)
        assert sum(size for _, size in found) == batch
        assert all(1 <= size <= largest[threads] for threads, size in found)
    assert len(found) == sum(group.instances for group in configuration)


def test_less_memory_leads_to_fewer_instances(micro, cost):
    profile = cost.synthetic_profile("barriers")
    cells = {key: replace(cell, peak_bytes=1000) for key, cell in profile.cells.items()}
    profile = replace(profile, cells=cells)
    free = micro.configurations(profile, 64)["chosen"]
    tight = micro.configurations(profile, 64, budget=2500)["chosen"]
    assert sum(group.instances for group in free) > 2
    assert sum(group.instances for group in tight) <= 2
    assert micro.bytes_of(profile, [tight]) <= 2500


def side(ms, configuration, same=False):
    return {
        "configuration": configuration,
        "ms": ms,
        "skew_ms": [0.0] * len(ms),
        "same": same,
        "predicted_ms": ms[0],
    }


def test_the_headline_is_the_worst_cell_against_its_better_baseline(micro):
    chosen = side([10.0, 11.0, 12.0], "2x1x2", same=True)
    cells = [
        {
            "model": "resnet50",
            "batch": 4,
            "threads": 2,
            "chosen": chosen,
            "fat": side([20.0, 22.0, 24.0], "1x2x4"),
            "one_per_core": {**chosen},
        },
        {
            "model": "resnet50",
            "batch": 8,
            "threads": 2,
            "chosen": side([10.0, 10.0, 10.0], "1x2x8"),
            "fat": side([8.0, 9.0, 30.0], "1x2x8"),
            "one_per_core": side([12.0, 12.0, 12.0], "2x1x4"),
        },
    ]
    rows, headline = micro.summarise(cells)
    assert rows[0]["vs_better_baseline"]["baseline"] == "one_per_core"
    assert (rows[0]["vs_better_baseline"]["median"], rows[0]["same"]) == (1, ["one_per_core"])
    assert (rows[1]["vs_better_baseline"]["baseline"], rows[1]["same"]) == ("fat", [])
    assert headline["worst_vs_better_baseline"] == pytest.approx(0.9)
    assert headline["geomean_vs_fat"] == pytest.approx(math.sqrt(2 * 0.9))
    assert headline["mean_speedup_resnet50"] == pytest.approx(1.45)
    assert rows[2]["mean_speedup_in_the_paper_on_16_cores"] == 1.53


def test_a_replay_measures_some_cells_and_chooses_well(cost):
    for kind in cost.SYNTHETIC:
        row = cost.replayed(cost.synthetic_profile(kind), "synthetic")
        assert row["cells"] < row["cells_exhaustive"] == 16 * 7
        assert 0 < row["time"] <= 0.2
        assert 0 <= row["regret"] < 0.1


def test_on_this_host_choices_count_by_what_they_took_side_by_side(cost):
    choices = [{"batch": 1}, {"batch": 2, "ratio": {"median": 1.03}}]
    assert cost.regret_here(choices) == pytest.approx(0.03)
    assert cost.regret_here(choices[:1]) == 0
    here = {"source": cost.HERE, "time": 0.8, "regret": 0.01, "undecided": ["batch 2: ..."]}
    replayed = {"source": "synthetic", "time": 0.1, "regret": 0.005, "undecided": []}
    assert cost.summarise([{**here, "regret_here": 0.03}, replayed]) == {
        "adaptive_vs_exhaustive_time": 0.1,
        "worst_regret": 0.01,
        "worst_regret_here": 0.03,
        "adaptive_vs_exhaustive_time_here": 0.8,
        "undecided_here": 1,
        "synthetic": True,
    }


def test_a_profile_without_the_best_cells_is_regretted(cost):
    exhaustive = cost.synthetic_profile("barriers")
    assert cost.regret(exhaustive, exhaustive)["regret"] == 0
    wide = {key: cell for key, cell in exhaustive.cells.items() if key[0] == 16}
    assert cost.regret(replace(exhaustive, cells=wide), exhaustive)["regret"] > 0.5


def test_recorded_profiles_take_the_place_of_invented_ones(cost, tmp_path):
    assert {row["source"] for row in cost.replays(tmp_path)} == {"synthetic"}
    profile = cost.synthetic_profile("scales well", threads=4, batch=8)
    (tmp_path / "a.profile.json").write_text(profile.to_json())
    incomplete = cost.synthetic_profile("barriers", threads=4, batch=8)
    (tmp_path / "b.profile.json").write_text(
        incomplete.to_json().replace('"complete": true', '"complete": false')
    )
    [row] = cost.replays(tmp_path)
    assert row["model"] == "synthetic: scales well"
    assert row["source"] == "recorded on synthetic"


NETWORKS = ["bert_base", "gpt2_small", "inception_v3", "resnet50"]


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_answers_with_finite_numbers_alone_and_in_a_batch(
    micro, name, tmp_path, monkeypatch
):
    from ts.model_loader import ModelLoaderFactory

    settings = {"layers": 1} if name in ("bert_base", "gpt2_small") else None
    archive = micro.pack_model(micro.BENCH / "models" / name, tmp_path, settings)
    model = unpack(archive, tmp_path / "unpacked")
    monkeypatch.syspath_prepend(model.folder)
    for module in ("handler", "model"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    service = ModelLoaderFactory.get_model_loader().load(
        name, str(model.folder), model.handler, None, 8, None, True
    )
    [alone] = service._entry_point([{"body": bytes(8)}], service.context)
    batch = service._entry_point([{"body": bytes(8)}] * 3, service.context)
    assert len(alone) == 1
    assert math.isfinite(alone[0])
    assert alone[0] != 0
    torch.testing.assert_close(torch.tensor(batch), torch.tensor([alone] * 3))
