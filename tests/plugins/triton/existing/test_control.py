"""The controller of an existing model without a server: statistics, choice, page, preparation."""

import importlib.util
import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from shunter.allocator.cpus.discovery import read_topology
from shunter.allocator.planning.configuration import parse_configuration
from shunter.allocator.planning.profile import Cell, Profile, Provenance
from shunter.plugins.cli.main import app
from shunter.plugins.control.settings_keys import ConfigurationSettings
from shunter.plugins.errors import UserError
from shunter.plugins.host import HostError
from shunter.plugins.profiling.concurrent_workers import NotTogether
from shunter.plugins.profiling.profiles import cpu_model, write_profile
from shunter.plugins.triton.existing import adoption, preparation
from shunter.plugins.triton.existing.choice import Choices, Target, possible
from shunter.plugins.triton.existing.controller import Controller, Terms
from shunter.plugins.triton.existing.page import StrategyPage
from shunter.plugins.triton.existing.profiling import RemoteWorkers
from shunter.plugins.triton.existing.server import (
    THREADS_PARAMETER,
    group_of,
    present_of,
    threads_of,
)
from shunter.plugins.triton.existing.statistics import Counters, between
from shunter.plugins.triton.layout import unpack

S = 10**9
MS = 10**6
STATS = {
    "model_stats": [
        {
            "name": "m",
            "version": version,
            "inference_count": 30,
            "inference_stats": {
                "success": {"count": 20, "ns": 40 * S},
                "fail": {"count": 1, "ns": 5},
                "queue": {"count": 20, "ns": 10 * S},
            },
            "batch_stats": [
                {
                    "batch_size": 3,
                    "compute_input": {"count": 10, "ns": 10 * MS},
                    "compute_infer": {"count": 10, "ns": 100 * MS},
                    "compute_output": {"count": 10, "ns": 20 * MS},
                }
            ],
        }
        for version in ("1", "2")
    ]
}


def test_statistics_of_all_versions_are_added_up():
    found = Counters.of(STATS)
    assert (found.requests, found.failed, found.rows) == (40, 2, 60)
    assert (found.total_ns, found.queued, found.queue_ns) == (80 * S, 40, 20 * S)
    assert found.batches == {3: (20, 260 * MS)}
    assert Counters.of({}) == Counters()


def test_the_load_between_two_looks():
    after = Counters.of(STATS)
    load = between(Counters(), after, 10)
    # 80 s were waited in 10 s by requests of one and a half rows each.
    assert load.depth == pytest.approx(12)
    assert load.rate == pytest.approx(6)
    assert load.waited_ns == S // 2
    assert load.batches == {3: (20, 13 * MS)}
    quiet = between(after, after, 10)
    assert (quiet.depth, quiet.rate, quiet.waited_ns, quiet.batches) == (0, 0, 0, {})
    # A model that was loaded again counts from nothing.
    assert between(replace(after, requests=10**6, rows=10**6), after, 10) == load


def profile(cells, threads=1):
    where = Provenance("m", "hash", "cpu", 4, "Triton 2", "sample")
    known = Profile(where, threads, 16, "adaptive", complete=True)
    for (t, b), ms in cells.items():
        known = known.with_cells([Cell(t, b, ms, ms, ms, 6)], 1.0)
    return known


LINEAR = {(1, 1): 10.0, (1, 16): 160.0}
TWO_WAYS = {(1, 1): 10.0, (1, 16): 160.0, (4, 1): 4.0, (4, 16): 64.0}
ONE, FREE = Target(1, 0, 0), Terms()
SETTINGS = ConfigurationSettings(timeout_s=1)


def choices(cells=LINEAR, threads=(1,), cores=4, settings=SETTINGS):
    return Choices(profile(cells, max(t for t, _ in cells)), 16, cores, threads, settings)


@pytest.mark.parametrize(
    ("cells", "threads", "batch", "best"),
    [
        (LINEAR, (1,), 1, Target(1, 1, 16)),
        (LINEAR, (1,), 2, Target(2, 1, 16)),
        (LINEAR, (1,), 16, Target(4, 1, 16)),
        (LINEAR, (1,), 64, Target(4, 1, 16)),
        # One thread each for many rows, all threads together for one.
        (TWO_WAYS, (1, 4), 1, Target(1, 4, 16)),
        (TWO_WAYS, (1, 4), 16, Target(4, 1, 16)),
        (TWO_WAYS, (4,), 16, Target(1, 4, 16)),
    ],
)
def test_all_instances_are_alike_and_the_best_of_those(cells, threads, batch, best):
    assert choices(cells, threads).best(batch) == best


def test_a_model_whose_code_takes_no_number_of_threads_has_one():
    known = profile(TWO_WAYS, 4)
    assert possible(0, known) == (1,)
    assert possible(2, known) == (1, 4)
    with pytest.raises(ValueError, match="no cells with 3 threads"):
        choices(TWO_WAYS, (3,))


def test_a_plan_has_the_same_threads_everywhere():
    found = adoption.plan(profile(TWO_WAYS, 4), (4,), 5)
    assert {group.threads for group in found.chosen.configuration} == {1}
    assert adoption.plan(profile(TWO_WAYS, 4), (4,), 1).chosen.threads == 4
    with pytest.raises(UserError):
        adoption.plan(profile(TWO_WAYS, 4), (4,), 1, slo_ms=1.0)


def test_the_command_plans_for_instances_that_are_alike(tmp_path):
    known = profile(TWO_WAYS, 4)
    here = replace(known.provenance, cpu=cpu_model(), cores=read_topology().cores)
    write_profile(tmp_path / "m.profile.json", replace(known, provenance=here))
    words = ["plan", str(tmp_path / "m"), "--triton", "--threads", "4", "--batch", "5"]
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == 0, done.output
    chosen = json.loads(done.stdout)["plans"][0]["rows"][0]["configuration"]
    assert {each.threads for each in parse_configuration(chosen)} == {1}
    done = CliRunner().invoke(app, words)
    assert "shunter adopt control m --profile" in done.output
    done = CliRunner().invoke(app, [*words[:-2], "--json"])
    assert [each["batch"] for each in json.loads(done.stdout)["plans"]] == [1, 2, 4, 8, 16, 32, 64]


@pytest.mark.parametrize("command", [("profile", "m", "--triton"), ("adopt", "control", "m")])
def test_a_server_that_is_not_there_is_said_in_one_sentence(command):
    with pytest.raises(UserError, match="no Triton answers at"):
        CliRunner().invoke(app, [*command, "--http", "http://127.0.0.1:9"], catch_exceptions=False)


class FakeModel:
    """Counts grow by ``depth`` rows in the system; each batch has ``size`` rows."""

    def __init__(self):
        self.now, self.depth, self.changed, self.refuses = 0, 0, [], None
        self._counters, self.now_has = Counters(), (1, 0)

    def restart(self):
        """The server, or the model in it: it has what its files say."""
        self._counters, self.now_has = Counters(), (1, 0)

    def present(self):
        if self.refuses in ("all", "config"):
            raise HostError("no configuration")
        return self.now_has

    def clock(self):
        return self.now

    def pass_time(self, ns=S // 10):
        self.now += ns
        more = Counters(10, 0, 10, self.depth * ns, 10, 10 * MS, {1: (5, 60 * MS), 3: (5, 80 * MS)})
        self._counters = self._counters.plus(more)

    def counters(self):
        if self.refuses == "all":
            raise HostError("gone")
        return self._counters

    def change(self, instances, threads=0):
        self.changed.append((instances, threads))
        if self.refuses:
            raise HostError("refused")
        self.now_has = (instances, threads)


@pytest.fixture
def model():
    return FakeModel()


@pytest.fixture
def control(model, tmp_path):
    page = StrategyPage(tmp_path / "page")
    made = []

    def control(*, present=ONE, terms=FREE, **more):
        found = Controller(model, page, terms, present, clock=model.clock, pause_s=1, **more)
        made.append(found)
        return found

    yield control
    for each in made:
        each.close()
    page.close()


def written(controller):
    return unpack("strategy", controller.page.path.read_bytes())


def look(controller, model, times, depth):
    model.depth = depth
    for _ in range(times):
        model.pass_time()
        controller.cycle()
        controller.settle(10)


def test_the_page_has_the_terms_and_what_was_measured(control, model):
    controller = control(terms=Terms(request_class=1, slo_ms=20, cap=5))
    controller.cycle()
    first = written(controller)
    assert (first["cap"], first["class"], first["apart"], first["slo_ns"]) == (5, 1, 1, 20 * MS)
    assert (first["fixed_ns"], first["per_row_ns"]) == (0, 0)
    look(controller, model, 30, 1)
    # 12 ms for one row and 16 for three.
    later = written(controller)
    assert later["fixed_ns"] == pytest.approx(10 * MS, rel=0.05)
    assert later["per_row_ns"] == pytest.approx(2 * MS, rel=0.2)
    assert later["waited_ns"] == MS
    assert model.changed == []


def test_instances_follow_the_load_and_the_cap_follows_them(control, model):
    controller = control(choices=choices())
    look(controller, model, 30, 16)
    assert model.changed == [(4, 0)]
    assert controller.present == Target(4, 0, 16)
    look(controller, model, 5, 16)
    assert written(controller)["cap"] == 16
    look(controller, model, 100, 1)  # fewer are not faster: they stay
    assert model.changed == [(4, 0)]


def test_another_number_of_threads_is_asked_for_where_the_model_takes_one(control, model):
    controller = control(present=Target(1, 4, 0), choices=choices(TWO_WAYS, (1, 4)))
    look(controller, model, 30, 16)
    assert model.changed == [(4, 1)]
    look(controller, model, 100, 1)
    assert model.changed == [(4, 1), (1, 4)]
    assert controller.present.threads == 4


def test_a_refused_change_leaves_all_as_it_was_and_is_tried_ever_more_rarely(control, model):
    controller = control(choices=choices())
    model.refuses = "changes"
    look(controller, model, 300, 16)
    assert 2 <= len(model.changed) <= 5
    assert controller.present.instances == 1
    assert controller.problem == "refused"
    model.refuses = None
    look(controller, model, 300, 16)
    assert controller.present.instances == 4
    assert controller.problem == ""


def test_a_server_that_is_gone_is_told_and_the_page_is_not_renewed(control, model):
    controller = control()
    controller.cycle()
    before = written(controller)
    model.refuses = "all"
    controller.cycle()
    assert controller.problem == "gone"
    assert written(controller) == before
    model.refuses = None
    controller.cycle()
    assert controller.problem == ""
    assert written(controller)["until_ns"] > before["until_ns"]


@pytest.mark.parametrize("is_seen", [True, False])
def test_a_server_that_was_started_again_has_what_its_files_say(control, model, is_seen):
    controller = control(choices=choices())
    look(controller, model, 30, 16)
    assert model.changed == [(4, 0)]
    if is_seen:
        model.refuses = "all"
        controller.cycle()
    model.restart()
    model.refuses = "config"
    look(controller, model, 30, 16)
    assert model.changed == [(4, 0)] and controller.problem == "no configuration"
    model.refuses = None
    look(controller, model, 3, 16)
    assert model.changed == [(4, 0)] * 2
    assert (controller.present.instances, controller.problem) == (4, "")


@pytest.mark.parametrize(
    ("groups", "is_right"),
    [
        ([{"kind": "KIND_CPU", "count": 2}], True),
        ([{"kind": "KIND_GPU", "count": 2}], False),
        ([{"kind": "KIND_CPU", "count": 1}] * 2, False),
        ([], False),
    ],
)
def test_only_one_group_of_instances_on_the_cpu_is_changed(groups, is_right):
    if is_right:
        assert group_of({"instance_group": groups}) == groups[0]
    else:
        with pytest.raises(UserError, match="number of instances"):
            group_of({"instance_group": groups})


def test_threads_are_a_parameter_of_the_model():
    config = {"parameters": {"SHUNTER_THREADS": {"string_value": "4"}}}
    assert threads_of(config) == 4
    assert threads_of({}) == 0
    assert present_of(config | {"instance_group": [{"count": 3}]}) == (3, 4)
    assert present_of({}) == (1, 0)


# ---- preparation

needs_client = pytest.mark.skipif(
    importlib.util.find_spec("tritonclient") is None, reason="needs tritonclient: `make triton`"
)
CONFIG = """# mine
backend: "onnxruntime"
max_batch_size: 8
instance_group [ { kind: KIND_CPU count: 2 } ]
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "m/config.pbtxt").write_text(CONFIG)
    return tmp_path / "m"


@needs_client
def test_lines_are_only_added_and_only_by_write(folder, tmp_path):
    library, page = tmp_path / "lib.so", tmp_path / "page"
    found = preparation.prepare(folder, library, page)
    assert [each.split(":")[0] for each in found.advice] == ["priority_levels"]
    assert (folder / "config.pbtxt").read_text() == CONFIG
    kept = found.write()
    assert kept.read_text() == CONFIG
    assert (folder / "config.pbtxt").read_text().startswith(CONFIG)
    again = preparation.prepare(folder, library, None)  # the page is known now
    assert again.lines == ()
    assert again.write() is None
    with pytest.raises(UserError, match="TRITON_BATCH_STRATEGY_PATH is"):
        preparation.prepare(folder, tmp_path / "other.so", None)


@needs_client
@pytest.mark.parametrize(
    ("more", "advice"),
    [
        ("", ["priority_levels"]),
        ("dynamic_batching { priority_levels: 2 default_priority_level: 2 }", []),
        (
            "dynamic_batching { priority_levels: 2 max_queue_delay_microseconds: 100 }",
            ["max_queue_delay_microseconds"],
        ),
        (
            "instance_group [ { kind: KIND_GPU count: 1 } ]",
            ["priority_levels", "the number of instances is changed only"],
        ),
    ],
)
def test_what_to_know_is_said(folder, tmp_path, more, advice):
    (folder / "config.pbtxt").write_text(CONFIG + more)
    found = preparation.prepare(folder, tmp_path / "lib.so", None)
    assert len(found.advice) == len(advice)
    assert all(map(str.startswith, found.advice, advice))
    assert ("dynamic_batching { }" in found.lines) == ("dynamic_batching" not in more)


@needs_client
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("nonsense: 3", "no configuration"),
        ('backend: "x" max_batch_size: 1', "no batches to form"),
        (CONFIG + "sequence_batching { }", "sequence_batching"),
        (CONFIG + "ensemble_scheduling { }", "ensemble_scheduling"),
    ],
)
def test_what_cannot_be_prepared_is_refused_by_name(folder, tmp_path, text, problem):
    (folder / "config.pbtxt").write_text(text)
    with pytest.raises(UserError, match=problem):
        preparation.prepare(folder, tmp_path / "lib.so", None)
    with pytest.raises(UserError, match="name the folder"):
        preparation.prepare(tmp_path / "missing", tmp_path / "lib.so", None)


def test_one_number_of_threads_is_measured_at_a_time():
    """Triton runs one version of a model, so cells of two cannot take turns."""
    changes = []
    config = {"instance_group": [{"kind": "KIND_CPU", "count": 3}]}
    config["parameters"] = {THREADS_PARAMETER: {"string_value": "4"}}

    class Model:
        def config(self):
            return config

        def change(self, count, threads=0):
            changes.append((count, threads))

    request = SimpleNamespace(ask=None)
    workers = RemoteWorkers(Model(), None, request, 4, alone=False)
    with pytest.raises(NotTogether):
        workers.of(1, 2)
    assert changes == []
    one, other = workers.of(2, 2)
    assert (len(one), len(other)) == (2, 2)
    workers.of(1)
    workers.close()
    assert changes == [(2, 2), (4, 1), (3, 4)]
