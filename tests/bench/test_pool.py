"""What the benchmarks of the pool ask, how they judge answers, and what their headlines say."""

import itertools
import os
import random
import subprocess
import sys
import threading
import zipfile
from collections import Counter
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")


@pytest.fixture
def pool(script):
    return SimpleNamespace(
        **{
            name: script(f"pool.{name}")
            for name in ("models", "callers", "churn", "memory", "on_demand", "servers")
        }
    )


HISTOGRAM = """\
17985:
 num     #instances         #bytes  class name (module)
-------------------------------------------------------
   1:          {bytes}           {size}  [B (java.base@17.0.19)
   2:            10            320  org.shunter.torchserve.queue.Entry
   3:             1             40  org.example.Loaded
   4:             2             80  org.example.Loaded
Total         12345         987654
"""


class TestLiveHeap:
    def test_a_histogram_is_read_by_class_and_nothing_else_is_counted(self, pool):
        found = pool.servers.histogram(HISTOGRAM.format(bytes=100, size=2_000_000))
        assert found == {
            "[B (java.base@17.0.19)": (100, 2_000_000),
            "org.shunter.torchserve.queue.Entry": (10, 320),
            "org.example.Loaded": (3, 120),
        }
        assert pool.servers.megabytes(found) == 2.0

    def test_classes_that_grew_are_named_and_those_first_that_grew_most(self, pool):
        before = {"shrank": (9, 900), "same": (1, 10), "grew": (1, 16)}
        after = {"shrank": (1, 100), "same": (1, 10), "grew": (3, 48), "new": (2, 640)}
        assert pool.servers.growth_by_class(before, after) == [
            {"class": "new", "bytes": 640, "instances": 2},
            {"class": "grew", "bytes": 32, "instances": 2},
        ]
        many = {f"c{each:02}": (1, 100 - each) for each in range(30)}
        grown = pool.servers.growth_by_class({}, many)
        assert [each["class"] for each in grown] == [f"c{each:02}" for each in range(20)]


class TestModels:
    def test_a_hundred_have_different_names_and_about_the_sizes_that_were_asked_for(self, pool):
        found = pool.models.models(100, 4, 44)
        assert len({each.name for each in found}) == 100
        assert len({each.megabytes for each in found}) == 100
        assert {each.architecture for each in found} == set(pool.models.ARCHITECTURES)
        assert (min(e.megabytes for e in found), max(e.megabytes for e in found)) == (4, 44)
        import torch

        with torch.device("meta"):
            for each in found[::9]:
                network = pool.models._module(each.architecture).Network(**each.shape)
                size = sum(p.numel() * p.element_size() for p in network.parameters())
                assert 0.6 < size / 1e6 / each.megabytes < 1.4

    def test_weights_are_always_the_same_and_those_of_no_other(self, pool):
        import torch

        one, again, other = (pool.models.PoolModel(number, "mlp", 2) for number in (8, 8, 9))
        weights = [each.network().layers[0].weight for each in (one, again, other)]
        assert torch.equal(weights[0], weights[1])
        assert not torch.equal(weights[0], weights[2])

    def test_an_answer_of_another_model_is_not_right_whatever_its_numbers(self, pool):
        model = pool.models.PoolModel(3, "mlp", 2)
        packed = pool.models.Packed(model, 0, ((0.1, 0.2), (0.3, 0.4)))
        numbers = [0.3, 0.401]
        assert packed.is_right(1, {"model": model.name, "numbers": numbers})
        assert not packed.is_right(0, {"model": model.name, "numbers": numbers})
        assert not packed.is_right(1, {"model": "mlp-004", "numbers": numbers})
        assert not packed.is_right(1, {"code": 500})
        assert not packed.is_right(1, "mlp-003")

    def test_answers_that_could_be_mistaken_are_refused(self, pool):
        rows = ((0.1, 0.2), (0.1, 0.21))
        packed = [
            pool.models.Packed(pool.models.PoolModel(i, "mlp", 2), 0, (row,))
            for i, row in enumerate(rows)
        ]
        with pytest.raises(RuntimeError, match=r"0\.01"):
            pool.models._check_apart(packed)
        pool.models._check_apart(packed[:1])

    def test_what_is_packed_answers_as_it_was_computed(self, pool, tmp_path, monkeypatch):
        """The handler as TorchServe calls it, from the files of the archive."""
        wanted = [pool.models.PoolModel(i, a, 1) for i, a in enumerate(pool.models.ARCHITECTURES)]
        for packed in pool.models.pack_all(wanted, tmp_path):
            folder = tmp_path / packed.name
            with zipfile.ZipFile(tmp_path / packed.archive) as archive:
                archive.extractall(folder)
            with monkeypatch.context() as patched:
                patched.syspath_prepend(str(folder))
                patched.delitem(sys.modules, "model", raising=False)
                names = {"__name__": "handler"}
                exec((folder / "handler.py").read_text(), names)
                patched.delitem(sys.modules, "model", raising=False)
            context = Context(folder, packed.model.shape)
            handler = names["PoolHandler"]()
            handler.initialize(context)
            rows = [{"body": packed.body(seed)} for seed in range(pool.models.SEEDS)]
            rows += [{"body": {"seed": 0, "expect": list(packed.answers[1])}}]
            answers = handler.handle(rows, context)
            right = [packed.is_right(i, each) for i, each in enumerate(answers[:-1])]
            assert all(right), packed.name
            assert context.refused == [pool.models.SEEDS]


class Context:
    """As much of TorchServe's as the handler uses."""

    def __init__(self, folder, shape):
        self.model_yaml_config = {"handler": shape}
        self.manifest = {"model": {"serializedFile": "weights.pt"}}
        self.system_properties = {"model_dir": str(folder)}
        self.refused = []

    def set_response_status(self, code, phrase, idx):
        assert code == 406
        self.refused.append(idx)


class TestPatterns:
    @pytest.mark.parametrize("name", ["sequential", "uniform", "zipf"])
    def test_they_are_the_same_each_time_and_reach_every_model(self, pool, name):
        make = pool.callers.PATTERNS[name]
        one, other = (list(itertools.islice(make(5, 3), 400)) for _ in range(2))
        assert one == other
        assert set(one) == set(range(5))

    def test_the_first_model_is_asked_most_by_zipfs_law(self, pool):
        counts = Counter(itertools.islice(pool.callers.zipf(5, 1), 10_000))
        shares = pool.callers.zipf_weights(5)
        assert all(abs(counts[i] / 10_000 - shares[i]) < 0.02 for i in range(5))

    def test_only_right_answers_have_a_latency_and_the_rest_is_lost_or_wrong(self, pool):
        ends = pool.callers.Ends(seconds=2)
        for end in ("right", "right", "wrong", "status 503", "TimeoutError"):
            ends.add("a" if end == "right" else "b", end, 10.0)
        row = ends.row()
        assert (row["requests"], row["wrong"], row["lost"]) == (5, 1, 2)
        assert (row["rate"], row["p99_ms"]) == (1, 10)

    def test_what_is_usual_is_told_of_each_model_and_not_of_the_one_in_the_middle(self, pool):
        ends = pool.callers.Ends(seconds=1)
        for model, ms in (("a", 1), ("a", 1), ("b", 100), ("b", 100), ("b", 100)):
            ends.add(model, "right", float(ms))
        row = ends.row()
        assert (row["p50_ms"], row["model_p50_ms"]) == (100, pytest.approx(10))


class TestMemory:
    @pytest.mark.parametrize(
        ("command", "kind"),
        [
            (["/usr/lib/jvm/bin/java", "-jar"], "jvm"),
            (["python", "-P", "-m", "shunter.handlers.torchserve.pool.worker"], "pool"),
            (["/a/shunter-seat", "shunter.handlers.torchserve.pool.worker", "python"], "workers"),
            (["python", "ts/model_service_worker.py", "--sock-name", "/tmp/x"], "workers"),
            (["python", "-m", "shunter.plugins.control.controller"], "others"),
        ],
    )
    def test_a_process_is_known_by_its_command(self, pool, command, kind):
        assert pool.memory.kind_of([each.encode() for each in command]) == kind

    def test_processes_are_found_by_their_mark_whoever_started_them(self, pool):
        env = {**os.environ, pool.memory.MARK: "this-test"}
        command = [sys.executable, "-c", "print(flush=True); input()"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen(command, **pipes, env=env) as process:
            process.stdout.readline()  # it has an environment a moment after it was started
            assert pool.memory.processes("this-test")["others"] == [process.pid]
            assert not any(pool.memory.processes("another").values())
            row = pool.memory.memory_of(pool.memory.processes("this-test"))
            process.stdin.close()
        assert row["processes"] == 1
        assert 0 < row["pss"] == row["others_pss"] == row["total"]
        assert pool.memory.memory_of({"others": [process.pid]})["total"] == 0  # it has ended

    def test_files_that_nobody_has_touched_count_once(self, pool, tmp_path, monkeypatch):
        (tmp_path / "weights").write_bytes(bytes(3_000_000))
        sizes = {1: {"Pss": 5_000_000, "Pss_Shmem": 1_000_000}, 2: {"Pss": 2_000_000}}
        monkeypatch.setattr(pool.memory, "_sizes", lambda pid: sizes[pid])
        monkeypatch.setattr(pool.memory, "_runtime_folders", lambda groups: {tmp_path})
        row = pool.memory.memory_of({"jvm": [1], "pool": [2]})
        assert (row["pss"], row["jvm_pss"], row["pool_pss"]) == (7, 5, 2)
        assert row["files"] == pytest.approx(3, abs=0.1)
        assert row["total"] == pytest.approx(9, abs=0.1)


@pytest.mark.parametrize("seed", range(4))
def test_on_demand_never_has_more_than_its_room_nor_takes_away_what_is_asked(pool, seed):
    names = [SimpleNamespace(name=f"m{i}") for i in range(5)]
    there, asked, lock, faults = set(), Counter(), threading.Lock(), []

    def register(model):
        with lock:
            there.add(model.name)
            if len(there) > 3:
                faults.append(f"{len(there)} at a time")

    def unregister(model):
        with lock:
            there.remove(model.name)
            if asked[model.name]:
                faults.append(f"{model.name} was asked")

    demand = pool.on_demand.OnDemand(register, unregister, 3)

    def run(number):
        choose = random.Random(f"{seed} {number}")
        for _ in range(60):
            model = choose.choice(names)
            with demand.holding(model):
                with lock:
                    asked[model.name] += 1
                    if model.name not in there:
                        faults.append(f"{model.name} is not there")
                with lock:
                    asked[model.name] -= 1

    threads = [threading.Thread(target=run, args=(i,)) for i in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(30)
    assert not faults
    assert demand.registrations >= 5


def test_on_demand_the_least_recently_used_one_leaves(pool):
    one, two, three = (SimpleNamespace(name=name) for name in "abc")
    left = []
    demand = pool.on_demand.OnDemand(lambda model: None, lambda model: left.append(model.name), 2)
    for model in (one, two, one, three, one, two):
        with demand.holding(model):
            pass
    assert left == ["b", "c"]
    assert demand.registrations == 4


def test_on_demand_a_model_that_does_not_come_is_tried_again(pool):
    failures = [RuntimeError("no")]

    def register(model):
        if failures:
            raise failures.pop()

    model = SimpleNamespace(name="a")
    demand = pool.on_demand.OnDemand(register, lambda model: None, 1)
    with pytest.raises(RuntimeError), demand.holding(model):
        pass
    with demand.holding(model):
        pass
    assert demand.registrations == 2


def test_a_model_may_be_gone_only_around_its_own_change(pool):
    one, steady = SimpleNamespace(name="a"), SimpleNamespace(name="b")
    churn = pool.churn.Churn(None, [one])
    before = churn.steps(one)
    assert not churn.may_be_gone(one, before)
    churn._steps["a"] += 1
    assert churn.may_be_gone(one, before)
    assert churn.may_be_gone(one, churn.steps(one))
    assert not churn.may_be_gone(steady, churn.steps(steady))
    churn._steps["a"] += 1
    assert churn.may_be_gone(one, before)
    assert not churn.may_be_gone(one, churn.steps(one))


class TestHeadlines:
    @staticmethod
    def cells(side, pattern, clients, *, rates=(), p50=(), p99=()):
        given = itertools.zip_longest(rates, p50, p99, fillvalue=1.0)
        return [
            {
                "side": side,
                "pattern": pattern,
                "concurrency": clients,
                "round": number,
                "rate": rate,
                "p50_ms": low,
                "model_p50_ms": low,
                "p90_ms": high,
                "p99_ms": high,
                "requests": 9,
                "hits": None,
                "wrong": 0,
                "lost": 1,
            }
            for number, (rate, low, high) in enumerate(given)
        ]

    def test_the_cache(self, script):
        cache = script("rafiqi_cache")
        rows = self.cells("dedicated", "hits", 1, p50=(10, 10, 20))
        rows += self.cells("pool", "hits", 1, p50=(10, 11, 30))
        rows += self.cells("stock", "zipf", 32, rates=(100, 50, 10))
        rows += self.cells("dedicated", "zipf", 32, rates=(50, 100, 10))
        rows += self.cells("pool", "zipf", 32, rates=(90, 80, 10))
        rows += self.cells("on_demand", "sequential", 1, p99=(4000,))
        rows += self.cells("pool", "sequential", 1, p99=(40, 1, 1))
        found = cache.headline(rows, cache.summarise(rows))
        assert found == {
            "hit_cost_vs_dedicated": 1.1,
            "zipf_throughput_vs_all_resident": 0.9,
            "sequential_p99_vs_stock_on_demand": 0.01,
            "wrong_answers": 0,
            "lost_requests": len(rows),
        }

    def test_hits_are_those_of_all_processes_since_then(self, script):
        cache = script("rafiqi_cache")
        before = {"pools": [{"hits": 5, "misses": 1}]}
        after = {"pools": [{"hits": 7, "misses": 1}, {"hits": 1, "misses": 1}]}
        assert cache.hits(before, after) == 0.75
        assert cache.hits(None, None) is None
        assert cache.hits(after, after) is None

    def test_sides_that_were_not_measured_make_no_claim(self, script):
        cache = script("rafiqi_cache")
        rows = self.cells("stock", "zipf", 32, rates=(100, 50))
        found = cache.headline(rows, cache.summarise(rows))
        assert set(found) == {"wrong_answers", "lost_requests"}

    def test_fairness(self, script):
        fairness = script("fairness")
        rows = [
            {
                "side": side,
                "round": number,
                "what": what,
                "capacity": 9.0,
                "lost": 0,
                "p50_ms": 1.0,
                "p99_ms": p99,
                "wrong": 1,
                "flood": {"ok_per_s": 8, "offered_per_s": 90},
            }
            for side, pairs in {"pool": [(10, 20), (10, 30), (20, 30)], "stock": [(1, 9)]}.items()
            for number, pair in enumerate(pairs)
            for what, p99 in zip(("alone", "flooded"), pair, strict=True)
        ]
        assert fairness.headline(fairness.summarise(rows)) == {
            "quiet_p99_flooded_vs_alone": 2,
            "quiet_lost": 0,
            "wrong_answers": 8,
            "quiet_p99_flooded_vs_alone_stock": 9,
        }

    def test_many_models(self, script):
        many = script("many_models")
        zipf = {"p99_ms": 7}
        ours = {"side": "pool", "models": 100, "memory": {"total": 4000}, "zipf": zipf}
        rows = [ours | {"start_seconds": 50.0, "wrong": 0, "lost": 0}]
        rows += [{"side": "stock", "phase": "fill", "models": 12}]
        rows += [{"side": "stock", "models": 12, "start_seconds": 24.0, "wrong": 1, "lost": 5}]
        assert many.headline(rows) == {
            "models": 100,
            "total_pss_mb": 4000,
            "wrong_answers": 1,
            "lost_requests": 0,
            "p99_zipf_ms": 7,
            "start_seconds": 50.0,
            "stock_models_in_same_memory": 12,
            "stock_start_seconds": 24.0,
            "stock_start_seconds_per_model": 2.0,
        }
