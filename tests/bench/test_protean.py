"""The simulated cluster: hand-computed cases, nothing lost, the fast form against the exact one."""

import math
from collections import Counter
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def protean(script):
    """Its modules by name."""
    return lambda name: script(f"protean.{name}")


@pytest.fixture
def world(protean):
    """Without scatter."""
    return protean("workloads").World(scatter=0.0)


def jobs(protean, world, *wanted):
    """Batches of ten requests: (model, strict), all complete at 0."""
    return [
        protean("gpu").Job(model, strict, 10, 0.0, world.memory_bytes(model))
        for model, strict in wanted
    ]


def gpu(protean, world, scheme, layout=None):
    kind = protean("schemes").schemes(world)[scheme]
    return protean("gpu").Gpu(world, layout or kind.layout, kind.place, kind.parted)


def ends(machine):
    machine.advance(100.0)
    return sorted(round(job.done * 1e3, 6) for job in machine.ended)


def test_time_sharing_runs_one_after_the_other(protean, world):
    machine = gpu(protean, world, "Molecule")
    machine.arrive(0.0, jobs(protean, world, *[("ResNet 50", True)] * 5))
    assert ends(machine) == [50.0, 100.0, 150.0, 200.0, 250.0]


def test_batches_that_share_a_slice_are_slowed_down_by_the_bandwidth_they_want(protean, world):
    # FBR 0.66 and 50 ms each: three together want 1.98 of the bandwidth.
    machine = gpu(protean, world, "INFless/Llama")
    machine.arrive(0.0, jobs(protean, world, *[("ResNet 50", True)] * 3))
    assert ends(machine) == pytest.approx([99.0] * 3)
    alone = gpu(protean, world, "INFless/Llama")
    alone.arrive(0.0, jobs(protean, world, ("ResNet 50", True)))
    assert ends(alone) == [50.0]


def test_one_that_comes_later_slows_down_from_then_on(protean, world):
    # Alone for 25 ms, then at 1 / 1.32 of the speed: 25 * 1.32 more; the second one has then
    # done 25 ms of its work, and does the rest alone.
    machine = gpu(protean, world, "INFless/Llama")
    first, second = jobs(protean, world, *[("ResNet 50", True)] * 2)
    machine.arrive(0.0, [first])
    machine.arrive(0.025, [second])
    assert ends(machine) == pytest.approx([25 + 33.0, 25 + 33.0 + 25.0])


def test_memory_that_is_taken_makes_wait(protean, world):
    # 8 GiB each: four on 39.5 GiB, the fifth when those end.
    machine = gpu(protean, world, "INFless/Llama")
    machine.arrive(0.0, jobs(protean, world, *[("DPN 92", True)] * 5))
    found = ends(machine)
    together = 52 * 4 * 0.76
    assert found == pytest.approx([together] * 4 + [together + 52])


def test_strict_and_best_effort_get_the_slices_that_algorithm_1_says(protean, world):
    machine = gpu(protean, world, "PROTEAN", ("4g", "3g"))
    machine.arrive(0.0, jobs(protean, world, ("MobileNet", False), ("ResNet 50", True)))
    where = {job.model: each.kind for each in machine.slices for job in each.jobs}
    assert where == {"MobileNet": "3g", "ResNet 50": "4g"}
    known = world.known.alone_ms
    assert ends(machine) == pytest.approx(
        sorted([known["ResNet 50"]["4g"], known["MobileNet"]["3g"]])
    )


def test_a_whole_gpu_is_away_while_it_changes_and_a_part_of_it_is_not(protean, world):
    whole = gpu(protean, world, "PROTEAN")
    whole.change(("4g", "3g"), whole=True)
    part = gpu(protean, world, "ours")
    part.change(("4g", "3g"), whole=False)
    assert whole.open_slices == []
    assert [each.kind for each in part.open_slices] == ["4g"]
    for machine in (whole, part):
        assert machine.is_changing
        machine.advance(1.99)
        assert machine.is_changing
        machine.advance(2.0)
        assert not machine.is_changing
        assert machine.layout == ("4g", "3g")


def test_a_change_waits_for_what_runs_and_what_waits(protean, world):
    machine = gpu(protean, world, "PROTEAN", ("2g",))
    machine.arrive(0.0, jobs(protean, world, *[("DPN 92", True)] * 2))  # one fits at a time
    machine.change(("4g", "3g"), whole=True)
    twice = 2 * world.known.alone_ms["DPN 92"]["2g"] / 1e3
    machine.advance(twice + 1.99)
    assert len(machine.ended) == 2
    assert machine.is_changing
    machine.advance(twice + 2.01)
    assert machine.layout == ("4g", "3g")


def test_a_model_without_a_free_instance_waits_for_one(protean, world):
    machine = gpu(protean, world, "INFless/Llama")
    machine.limits = {"ResNet 50": 1}
    machine.arrive(0.0, jobs(protean, world, *[("ResNet 50", True)] * 2))
    assert ends(machine) == [50.0, 100.0]


@pytest.mark.parametrize("scheme", ["Molecule", "INFless/Llama", "Naive", "GPUlet", "Oracle"])
def test_every_request_is_answered_once(protean, scheme):
    check_conservation(protean, scheme, "DPN 92", "twitter")


@pytest.mark.parametrize("scheme", ["PROTEAN", "ours"])
def test_every_request_is_answered_once_while_layouts_change(protean, scheme):
    run = check_conservation(protean, scheme, "GPT-1", "wikipedia", model_s=5.0)
    assert run.changes > 0


def check_conservation(protean, scheme, model, trace, **values):
    load, workloads = protean("load"), protean("workloads")
    world = workloads.World(poisson=True, spread_s=0.4, **values)
    workload = workloads.Workload(model, 0.5, trace, 30, seed=3)
    kind = protean("schemes").schemes(world)[scheme]
    run = protean("cluster").simulate(workload, kind, world)
    came = list(load.seconds(workload, world))
    assert sum(job.requests for job in run.jobs if job.is_strict) == sum(s.strict for s in came)
    assert sum(job.requests for job in run.jobs) == run.came
    assert len(set(map(id, run.jobs))) == len(run.jobs)
    assert all(job.arrived <= job.started <= job.done for job in run.jobs)
    assert all(math.isfinite(job.done) for job in run.jobs)
    return run


def test_the_same_seed_gives_the_same_run(protean):
    workloads, cluster, out = protean("workloads"), protean("cluster"), protean("outcome")
    world = workloads.World()
    kind = protean("schemes").schemes(world)["ours"]
    workload = workloads.Workload("BERT", 0.5, "wikipedia", 25)
    first, second = (out.outcome(cluster.simulate(workload, kind, world)) for _ in range(2))
    assert first == second


def test_the_oracle_tries_all_splits(protean):
    splits = list(protean("schemes").splits(3, 3))
    assert len(splits) == len(set(splits)) == 10
    assert all(sum(each) == 3 for each in splits)


def test_the_oracle_is_never_late_where_a_layout_exists_for_it(protean, world):
    sweeps = protean("schemes").Sweeps(world)
    layout, strict, other = sweeps.plan("VGG 19", 3, "ResNet 18", 2)
    assert (sum(strict), sum(other)) == (3, 2)
    known = world.known
    for kind, x, y in zip(layout, strict, other, strict=True):
        if x:
            beside = ["VGG 19"] * (x - 1) + ["ResNet 18"] * y
            assert known.eta("VGG 19", kind, beside) <= world.limit


def test_the_oracle_lays_out_anew_for_a_larger_batch_that_comes_later(protean, world):
    workload = protean("workloads").Workload("ShuffleNet V2", 0.5, "wikipedia", 2, 1)
    oracle = protean("schemes").schemes(world)["Oracle"]
    cluster = protean("cluster").Cluster(workload, oracle, world)
    machine = cluster.gpus[0]
    machine.reset(("1g",) * 7)
    [running] = jobs(protean, world, ("ShuffleNet V2", True))
    machine.start(running, machine.slices[0])
    large = max(protean("workloads").MODELS_22, key=world.memory_bytes)
    assert world.memory_bytes(large) > world.kinds["1g"].memory_bytes
    machine.arrive(0.0, jobs(protean, world, (large, False), (large, False)))
    assert len(ends(machine)) == 3


@pytest.mark.parametrize(
    ("model", "scheme", "tail"),
    [
        ("VGG 19", "INFless/Llama", 0.12),
        ("GoogleNet", "Naive", 0.12),
        # Some batches have one request of four; by the second they count like full ones.
        ("BERT", "PROTEAN", 0.3),
        ("GPT-1", "ours", 0.3),
    ],
)
def test_the_form_by_the_second_agrees_with_the_exact_one(protean, model, scheme, tail):
    workloads = protean("workloads")
    world = workloads.World()
    workload = workloads.Workload(model, 0.5, "wikipedia", 100)
    kind = protean("schemes").schemes(world)[scheme]
    exact = protean("outcome").outcome(protean("cluster").simulate(workload, kind, world))
    fast = protean("fast").simulate_day(workload, kind, world)
    assert fast.requests == exact["came"]
    assert fast.compliance == pytest.approx(exact["compliance"], abs=0.06)
    assert fast.be_p99_ms == pytest.approx(exact["be_p99_ms"], rel=tail)


def test_batches_are_dealt_evenly_to_a_group_of_gpus(protean):
    for strict, other, gpus in ((488, 489, 100), (20, 20, 8), (3, 17, 8), (0, 5, 8)):
        found = list(protean("fast").pairs(strict, other, gpus))
        assert sum(count for *_, count in found) == gpus
        assert sum(s * count for s, _, count in found) == strict
        assert sum(b * count for _, b, count in found) == other
        assert all(count > 0 for *_, count in found)


def test_slices_that_stay_are_those_of_both_layouts(protean):
    assert protean("fast").kept(("4g", "2g", "1g"), ("4g", "3g")) == ("4g",)
    assert protean("fast").kept(("7g",), ("4g", "3g")) == ()


def test_a_start_takes_its_time_and_one_that_is_not_needed_stays_for_a_while(protean, script):
    keep = script("shunter.allocator.placement.autoscaling").KeepAlive
    scaler = protean("managers").Scaler(5.0, lambda: keep(10.0))
    scaler.begin_with("m", 2)
    scaler.after(0.0, "m", 4)
    assert scaler.limits(1) == {"m": 2}
    scaler.after(5.0, "m", 1)
    assert (scaler.limits(1), scaler.starts) == ({"m": 4}, 2)
    scaler.after(16.0, "m", 1)
    assert scaler.limits(1) == {"m": 1}


def test_there_are_22_models_and_every_assumption_has_a_reason(protean):
    models = protean("workloads").MODELS_22
    groups = Counter(each.group for each in models.values())
    assert groups == {"HI": 5, "LI": 7, "VHI": 8, "GPT": 2}
    for table in ("ASSUMPTIONS", "PRINTED"):
        assert all(len(line) == 3 and all(line) for line in getattr(protean("assumptions"), table))


def test_a_printed_value_names_a_run_that_is_made(protean):
    figures, world = protean("figures"), protean("workloads").World()
    made = {(case.figure, case.name) for case in figures.cases(world, 10, 1)}
    kinds = protean("schemes").schemes(world)
    assert all((figure, name) in made for figure, name, _ in figures.PRINTED)
    assert all(scheme in kinds for *_, scheme in figures.PRINTED)


def test_the_documented_assumptions_are_those_of_the_code(script, capsys):
    script("protean_sim").print_assumptions()
    printed = capsys.readouterr().out.strip()
    page = Path(__file__).parents[2] / "docs" / "simulator.md"
    assert page.read_text(encoding="utf-8").strip().endswith(printed)
