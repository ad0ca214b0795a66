"""``shunter profile`` and ``shunter plan``: what they take, refuse and say."""

import json
import math
import signal
import subprocess
import sys
import zipfile
from dataclasses import replace

import pytest
import yaml
from rich.console import Console

from shunter.allocator.cpus.discovery import read_topology
from shunter.allocator.cpus.topology import Cpu, Topology
from shunter.allocator.planning.profile import Cell, Profile, Provenance, batch_sizes
from shunter.model_store.pack import pack
from shunter.plugins.cli import files as cli_files
from shunter.plugins.cli import main as cli
from shunter.plugins.cli import profile as cli_profile
from shunter.plugins.errors import UserError
from shunter.plugins.profiling.profiler import Progress
from shunter.plugins.profiling.profiles import (
    load_profile,
    profile_path,
    provenance_here,
    write_profile,
)

HANDLER = """
import time

def handle(data, context):
    if data is None:
        return None
    time.sleep(0.02 + 0.002 * len(data))
    return [str(each["body"]) for each in data]
"""
ELSEWHERE = Provenance("resnet", "ab12", "a processor", 16, "2.13.0", "cd34", "2026-01-02")


def profile_of(where=ELSEWHERE, threads=4, batch=8):
    cells = {
        (t, b): Cell(t, b, 1 + 2 * b / t, 1 + 2 * b / t, 1 + 2 * b / t, 6, peak_bytes=2**28)
        for t in range(1, threads + 1)
        for b in batch_sizes(batch)
    }
    return Profile(where, threads, batch, "exhaustive", cells, 42.0, complete=True)


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """Runs a command in an empty folder; returns its exit status, output and errors."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            cli.main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return ended.value.code or 0, out, err

    return run


@pytest.fixture
def archive(tmp_path):
    """Writes a model archive with that configuration, as far as it is read without a worker."""

    def archive(config=None, name="resnet"):
        model = {"modelName": name, "handler": "handler.py"}
        path = tmp_path / f"{name}.mar"
        with zipfile.ZipFile(path, "w") as content:
            if config is not None:
                content.writestr("model-config.yaml", yaml.safe_dump(config))
                model["configFile"] = "model-config.yaml"
            content.writestr("MAR-INF/MANIFEST.json", json.dumps({"model": model}))
        return path

    return archive


@pytest.fixture
def elsewhere(tmp_path):
    """A profile from another machine."""
    path = tmp_path / "resnet.profile.json"
    write_profile(path, profile_of())
    return path


# ---- shunter profile


@pytest.mark.parametrize(
    ("config", "batch"),
    [
        (None, None),
        ({"maxBatchDelay": 5}, None),
        ({"batchSize": 32}, 32),
        ({"batchSize": 1, "shunter": {"max_batch": 16}}, 16),
        ({"batchSize": 8, "shunter": "of no use"}, 8),
    ],
)
def test_the_largest_batch_is_the_one_that_a_server_would_make(archive, config, batch):
    assert cli_files.registered_batch(archive(config)) == batch


TWO_NODES = Topology(
    tuple(Cpu(i, physical=i // 2, node=0) for i in range(4))
    + tuple(Cpu(i, physical=i // 2, node=1) for i in range(4, 12))
)


@pytest.mark.parametrize(
    ("topology", "wanted", "threads"),
    [
        (TWO_NODES, None, 4),
        (TWO_NODES, 8, 8),
        (TWO_NODES, 1, 1),
        (replace(TWO_NODES, quota=3.5), None, 3),
        (replace(TWO_NODES, quota=0.5), None, 1),
        (replace(TWO_NODES, quota=0.5), 1, 1),
    ],
)
def test_an_instance_has_the_cores_of_one_node_inside_the_quota(topology, wanted, threads):
    assert cli_profile._instance_threads(topology, wanted) == threads


@pytest.mark.parametrize(("quota", "most"), [(math.inf, 8), (3.5, 3)])
def test_more_threads_than_one_node_has_cpus_are_refused(quota, most):
    with pytest.raises(UserError, match=f"--threads 9: an instance has at most {most} CPUs"):
        cli_profile._instance_threads(replace(TWO_NODES, quota=quota), 9)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["profile", "nowhere.mar"], "nowhere.mar does not exist"),
        (["profile", "."], "make an archive of it with `shunter pack`"),
        (["profile", "notes.txt"], "notes.txt cannot be read as a model archive"),
        (["profile", "resnet.mar", "--threads", "100000"], "--threads 100000: an instance has"),
        (["profile", "resnet.mar", "--max-batch", "4097"], "--max-batch 4097: allowed: 1 to 4096"),
        (["profile", "resnet.mar", "--seconds", "inf"], "--seconds inf: allowed: a finite number"),
        (["profile", "resnet.mar", "--input", "nowhere.jpg"], "--input nowhere.jpg cannot be read"),
        (["profile", "resnet.mar", "--content-type", "image/png"], "type of --input, which is"),
        (["profile", "resnet.mar", "--output", "nowhere/a.json"], "nowhere is not a folder"),
        (["plan", "nowhere.mar"], "nowhere.mar does not exist"),
        (["plan", "resnet.mar"], "has no profile yet: run `shunter profile resnet.mar`"),
        (["plan", "nowhere.json"], "nowhere.json cannot be read"),
        (["plan", "notes.txt"], "notes.txt: not JSON"),
        (["plan", "resnet.mar", "--batch", "2", "--slo-ms", "9"], "leave --batch away"),
        (["plan", "resnet.mar", "--memory-gib", "inf"], "--memory-gib inf: allowed: a finite"),
        (["plan", "resnet.mar", "--slo-ms", "inf"], "--slo-ms inf: allowed: a finite number"),
    ],
)
def test_a_mistake_of_the_user_is_one_sentence_and_status_2(
    run, archive, tmp_path, arguments, said
):
    archive()
    (tmp_path / "notes.txt").write_text("no archive")
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert said in err
    assert err.startswith("shunter: ")
    assert len(err.splitlines()) == 1


def test_a_line_tells_the_cell_under_way_the_count_and_the_time_left(capsys):
    with cli_profile._reporting(Console(file=sys.stderr, force_terminal=False)) as report:
        report(Progress(profile_of(threads=1), (2, 4), 5, float("nan")))
        report(Progress(profile_of(threads=1), (1, 8), 3, 600.0))
        report(Progress(profile_of(threads=1), None, 0, 0.0))
    assert capsys.readouterr().err.splitlines() == [
        "4 of 9 cells, now 2 threads, batch 4",
        "4 of 7 cells, now 1 thread, batch 8, about 10 min left",
        "4 of 4 cells",
    ]


def test_a_terminal_shows_a_bar_with_the_same(tmp_path):
    with (tmp_path / "screen").open("w+", encoding="utf-8") as screen:
        terminal = Console(file=screen, force_terminal=True, width=100)
        with cli_profile._reporting(terminal) as report:
            report(Progress(profile_of(threads=1), (2, 4), 5, 7.0))
        screen.seek(0)
        shown = screen.read()
    for part in ("2 threads, batch 4", "4 of 9 cells", "about 7 s left"):
        assert part in shown


@pytest.mark.parametrize(
    ("seconds", "text"), [(7.4, "7 s"), (99, "99 s"), (150, "2 min"), (9000, "2.5 h")]
)
def test_durations_are_in_the_unit_that_people_use(seconds, text):
    assert cli_profile._duration(seconds) == text


# ---- shunter profile, with a model that works


@pytest.fixture(scope="module")
def echo(tmp_path_factory):
    """An archive whose batches take 20 ms and 2 ms more for each request."""
    folder = tmp_path_factory.mktemp("models")
    model = folder / "echo"
    model.mkdir()
    (model / "handler.py").write_text(HANDLER)
    (model / "model-config.yaml").write_text("batchSize: 16\n")
    (folder / "body.txt").write_text("hello")
    return pack(model, folder / "store")


def command(archive):
    program = [sys.executable, "-m", "shunter.plugins.cli.main", "profile", str(archive)]
    options = ["--threads", "1", "--alone", "--precision", "0.5", "--seconds", "0.5"]
    return [*program, *options, "--input", str(archive.parents[1] / "body.txt")]


def test_ctrl_c_keeps_what_was_measured_and_the_same_command_goes_on(echo):
    path = profile_path(echo)
    with subprocess.Popen(
        command(echo), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as first:
        for line in first.stderr:
            if line.startswith("2 of"):
                first.send_signal(signal.SIGINT)
                break
        out, err = first.communicate(timeout=300)
    assert (first.returncode, out) == (130, "")
    kept = load_profile(path)
    assert 2 <= len(kept.cells) < 5
    assert not kept.complete
    said = f"shunter: {len(kept.cells)} cells are kept in {path}; the same command goes on\n"
    assert err.endswith(said)

    second = subprocess.run(command(echo), capture_output=True, text=True, timeout=300, check=True)
    done = load_profile(path)
    assert done.complete
    assert kept.cells.items() <= done.cells.items()
    assert sorted(done.cells) == [(1, b) for b in (1, 2, 4, 8, 16)]
    # The handler sleeps so long; how much longer it takes depends on the machine.
    assert all(cell.ms >= 20 + 2 * cell.batch for cell in done.cells.values())
    *_, where = lines = second.stdout.splitlines()
    # What could not be settled on a busy machine is said in lines between the two.
    at = next(i for i, line in enumerate(lines) if line.startswith("5 cells in "))
    summary, error = lines[at : at + 2]
    assert (lines[at + 2 : -1], where) == ([str(each) for each in done.undecided], str(path))
    assert summary.endswith(" s, adaptive, one instance at a time")
    assert "exhaustive" in error
    assert "latency in ms" in second.stdout
    assert f"{len(kept.cells)} of 5 cells, now 1 thread, batch" in second.stderr


def test_a_model_without_a_request_to_send_is_told_how_to_give_one(run, echo):
    status, out, err = run("profile", echo, "--output", "other.profile.json")
    assert (status, out) == (2, "")
    assert "echo has no example of a request: give one with --input FILE" in err


def test_stopping_before_the_first_cell_keeps_nothing(tmp_path):
    said = cli_profile._kept(tmp_path / "none.profile.json", restart=False)
    assert said == "stopped before the first cell was measured"


def test_after_a_restart_the_same_command_would_begin_anew_again(elsewhere):
    said = cli_profile._kept(elsewhere, restart=True)
    assert said.startswith("16 cells are kept in")
    assert said.endswith("; the same command without --restart goes on")


# ---- shunter plan


def test_a_profile_of_this_machine_and_model_is_planned_with_on_its_cores(run, archive):
    path = archive()
    write_profile(profile_path(path), profile_of(provenance_here(path)))
    status, out, err = run("plan", path, "--batch", "8")
    assert (status, err) == (0, "")
    assert f"resnet: batch 8 on {read_topology().cores} cores" in out
    assert "chosen" in out
    assert out.splitlines()[-1].startswith('to use it: curl -X PUT "http://127.0.0.1:8081/shunter')


def test_the_request_has_the_name_that_a_server_registers(run, archive):
    path = archive()
    older = replace(provenance_here(path), model="a file of another name")
    write_profile(profile_path(path), profile_of(older))
    _, out, _ = run("plan", path, "--batch", "8")
    assert "/shunter/models/resnet/configuration?" in out


def test_a_profile_of_another_archive_is_refused(run, archive):
    path = archive()
    write_profile(profile_path(path), profile_of(provenance_here(path)))
    archive({"batchSize": 4})
    for each in (path, profile_path(path)):
        status, _, err = run("plan", each)
        assert status == 2
        assert "was measured with model" in err


def test_a_profile_of_another_machine_is_refused_and_says_how_it_differs(run, elsewhere):
    status, out, err = run("plan", elsewhere)
    assert (status, out) == (2, "")
    assert "processor 'a processor', here" in err
    assert "run `shunter profile` again, or look at it with --anyway" in err


def test_anyway_plans_for_the_machine_that_was_measured_and_says_so(run, elsewhere):
    status, out, err = run("plan", elsewhere, "--anyway")
    assert status == 0
    assert err.startswith("shunter: measured with processor 'a processor', here")
    assert "resnet: each batch size on 16 cores" in out


def test_the_largest_batch_of_an_instance_may_be_given(run, elsewhere):
    _, out, _ = run("plan", elsewhere, "--anyway", "--threads", "4", "--max-batch", "1", "--json")
    plans = json.loads(out)["plans"]
    assert [(each["batch"], each["rows"][0]["configuration"][-2:]) for each in plans] == [
        (1, "x1"),
        (2, "x1"),
        (4, "x1"),
    ]


def test_cores_may_be_given_for_each_node(run, elsewhere):
    _, out, _ = run("plan", elsewhere, "--anyway", "--threads", "4,2", "--batch", "4", "--json")
    found = json.loads(out)
    assert found["cores"] == [4, 2]
    fat = found["plans"][-1]["rows"][1]["configuration"]
    assert {group.split("x")[1] for group in fat.split(",")} == {"4", "2"}


@pytest.mark.parametrize("threads", ["0", "many", "4,", "-1", "4,0", "99999"])
def test_cores_that_are_no_numbers_are_refused(run, elsewhere, threads):
    status, _, err = run("plan", elsewhere, "--anyway", f"--threads={threads}")
    assert (status, f"--threads {threads}: allowed: a number of cores" in err) == (2, True)


def test_json_has_a_plan_for_each_batch(run, elsewhere):
    _, out, _ = run("plan", elsewhere, "--anyway", "--threads", "4", "--json")
    found = json.loads(out)
    assert (found["model"], found["cores"], found["profile"]["cells"]) == ("resnet", [4], 16)
    assert [each["batch"] for each in found["plans"]] == [1, 2, 4, 8, 16, 32]


def test_an_slo_and_the_memory_bound_the_plan(run, elsewhere):
    options = ["--anyway", "--threads", "4", "--json"]
    _, out, _ = run("plan", elsewhere, *options, "--slo-ms", "6", "--memory-gib", "0.6")
    [found] = json.loads(out)["plans"]
    chosen = found["rows"][0]
    assert chosen["latency_ms"] <= 6
    assert sum(int(g.split("x")[0]) for g in chosen["configuration"].split(",")) <= 2
