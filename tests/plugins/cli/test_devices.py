"""``shunter devices``: bars of memory slices, who runs where, and what is refused."""

import json

import pynvml
import pytest

from shunter.allocator.cpus.claims import CoreClaims
from shunter.allocator.devices.simulated import driver
from shunter.allocator.devices.simulated.library import SimulatedLibrary, installed
from shunter.allocator.devices.simulated.state import SimProcess, State
from shunter.allocator.devices.simulated.store import Store
from shunter.plugins.cli import devices as command
from shunter.plugins.cli import main as cli


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """Runs the command; returns its exit status, standard output and standard error."""
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("SHUNTER_RUNTIME_DIR", str(tmp_path / "no-server"))
    monkeypatch.setenv("SHUNTER_CORE_CLAIMS", str(tmp_path / "claims"))
    monkeypatch.delenv("SHUNTER_TOKEN", raising=False)

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            cli.main(["devices", *(str(argument) for argument in arguments)])
        out, err = capsys.readouterr()
        return ended.value.code or 0, out, err

    return run


@pytest.fixture
def without_gpus():
    """A machine without NVML, whatever this one has."""

    class Missing:
        def __getattr__(self, name):
            return lambda *_: pynvml.NVML_ERROR_LIBRARY_NOT_FOUND

    with installed(Missing()):
        yield


def bars(out):
    """What stands in each bar, without the borders."""
    return [
        [cell.strip() for cell in line.strip("│").split("│")]
        for line in out.splitlines()
        if line.startswith("│")
    ]


def test_simulated_gpus_are_bars_of_memory_slices(run):
    status, out, _ = run("--simulate", "a100-40gb:2", "--layout", "4g,3g", "--layout", "4g,2g")
    assert status == 0
    assert out.startswith("simulated: no GPU is asked, nothing here was measured")
    assert bars(out) == [["4g.20gb", "3g.20gb"], ["4g.20gb", "2g.10gb", "free", "free"]]
    widths = [len(cell) for cell in out.splitlines()[4].strip("│").split("│")]
    assert widths[0] == widths[1]
    rows = [line.split() for line in out.splitlines() if "MIG-" in line]
    assert [row[:4] for row in rows[:2]] == [
        ["0-3", "4g.20gb", "56", "19.62"],
        ["4-7", "3g.20gb", "42", "19.62"],
    ]


def test_slices_that_nothing_can_have_are_not_called_free(run):
    _, out, _ = run("--simulate", "h200-141gb", "--layout", "4g,2g,1g")
    (bar,) = bars(out)
    assert bar[:3] == ["4g.71gb", "2g.35gb", "1g.18gb"]
    assert set(bar[3]) == {"░"}


def test_the_state_is_kept_in_a_file_and_changed_from_there(run, tmp_path):
    state = ("--simulate", "a100-40gb", "--state", tmp_path / "gpus")
    run(*state, "--layout", "4g,3g")
    before = json.loads(run(*state, "--json")[1])["devices"][0]
    run(*state, "--layout", "4g,2g,1g")
    after = json.loads(run(*state, "--json")[1])["devices"][0]
    assert (before["layout"], after["layout"]) == ("4g@0:4 3g@4:4", "4g@0:4 2g@4:2 1g@6:1")
    assert before["instances"][0] == after["instances"][0]


def test_every_full_layout_is_drawn(run):
    status, out, _ = run("--simulate", "h100-80gb:2", "--layouts")
    assert status == 0
    assert "NVIDIA H100 80GB HBM3: 19 layouts" in out
    assert len(bars(out)) == 19
    assert out.count("4g@0:4 2g@4:2 1g@6:1") == 1


@pytest.fixture
def machine(monkeypatch):
    """A machine with an A100 as far as NVML goes; its state can be changed."""
    store = Store(state=State.of(["a100-40gb"]))
    with installed(SimulatedLibrary(store)):
        with store.change() as state:
            driver.create(state, state.gpus[0].handle, 5, 0, 4)
            driver.create_compute(state, state.gpus[0].instances[0].handle, 3)
        yield store


def test_who_runs_on_an_instance_is_named(run, machine, monkeypatch):
    with machine.change() as state:
        uuid = state.gpus[0].instances[0].computes[0].uuid
        driver.occupy(state, uuid, SimProcess(4711, 1024))
        driver.occupy(state, uuid, SimProcess(4712))
    monkeypatch.setattr(command, "_models", lambda *_: {4711: "resnet50/1.0"})
    _, out, _ = run()
    assert "simulated" not in out
    assert bars(out)[1][0] == "resnet50/1.0"
    assert "resnet50/1.0 (pid 4711), pid 4712" in " ".join(out.split())
    assert "1.0 of 19.62" in out
    (gpu,) = json.loads(run("--json")[1])["devices"]
    (part,) = gpu["instances"][0]["mig_devices"]
    assert (part["pids"], part["models"]) == ([4711, 4712], ["resnet50/1.0"])


def test_a_server_says_which_process_serves_what():
    told = {
        "models": [
            {
                "name": "resnet50",
                "version": "1.0",
                "groups": [{"workers": [{"pid": 1}, {"pid": 2}]}],
                "preemption": None,
            },
            {
                "name": "minilm",
                "version": "2.0",
                "groups": [{"workers": []}],
                "preemption": {"runners": [{"pid": 3}]},
            },
        ]
    }
    assert dict(command._workers(told)) == {1: "resnet50/1.0", 2: "resnet50/1.0", 3: "minilm/2.0"}


def test_models_that_are_seated_on_a_device_are_known_by_its_name():
    def model(name, *devices):
        groups = [{"device": each} for each in devices]
        return {"name": name, "version": "1", "groups": groups}

    told = {"models": [model("a", "MIG-1", "MIG-1"), model("b", "MIG-1", ""), model("c")]}
    assert command._seated(told) == {"MIG-1": "a/1, b/1"}


def test_a_gpu_without_mig_is_one_bar(run, machine):
    with machine.change() as state:
        state.gpus[0].instances.clear()
        state.gpus[0].mig = state.gpus[0].pending = False
        driver.occupy(state, state.gpus[0].uuid, SimProcess(9))
    _, out, _ = run()
    assert "MIG off" in out
    assert bars(out) == [["whole GPU"], ["pid 9"]]


def test_who_may_not_list_instances_still_sees_them(run, machine):
    with machine.change() as state:
        state.privileged = False
    status, out, _ = run()
    assert status == 0
    row = next(line for line in out.splitlines() if "MIG-" in line)
    assert row.split()[:3] == ["?", "4g", "?"]


def test_a_host_without_gpus_has_cores(run, without_gpus, tmp_path):
    claims = CoreClaims(tmp_path / "claims")
    status, out, _ = run()
    claims.close()
    assert status == 0
    assert "no NVIDIA driver" in out
    assert "cores of this host" in out
    assert "nobody" in out
    told = json.loads(run("--json")[1])
    assert told["devices"] == []
    assert "no NVIDIA driver" in told["problem"]
    assert sum(node["cores"] for node in told["host"]) >= 1


def test_who_has_claimed_a_core_is_named(run, without_gpus, monkeypatch):
    from shunter.plugins.view.devices_view import NodeRecord

    nodes = [NodeRecord(0, 2, {0: [12], 1: [12], 2: [], 3: [13]})]
    monkeypatch.setattr(command, "_holders", lambda: nodes)
    monkeypatch.setattr(command, "_models", lambda *_: {12: "minilm/1.0"})
    _, out, _ = run()
    assert "0-1: minilm/1.0 (pid 12)" in out
    assert "3: pid 13" in out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--layout", "4g"), "are for simulated GPUs: add --simulate a100-40gb"),
        (("--simulate", "rtx"), "allowed: a100-40gb, a100-80gb, h100-80gb, h200-141gb"),
        (("--simulate", "a100-40gb:0"), "allowed: 1 to 64 of them"),
        (("--simulate", "a100-40gb", "--layout", "5g"), "5g is no kind of instance"),
        (("--simulate", "a100-40gb", "--layout", "4g,4g"), "2 x 4g do not fit"),
        (
            ("--simulate", "a100-40gb:3", "--layout", "4g", "--layout", "3g"),
            "--layout is there 2 times; allowed: 1 or 3",
        ),
        (("--simulate", "a100-40gb", "--state", "/no/such/folder/x"), "No such file or directory"),
        (("--layouts",), "no GPU here can be parted"),
    ],
)
def test_a_mistake_is_one_sentence_and_status_2(run, without_gpus, arguments, told):
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert told in err
    assert err.startswith("shunter: ")
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("text", ["", "{}", '{"gpus": 3}', '{"gpus": [{"colour": "red"}]}'])
def test_a_file_that_is_no_state_is_refused(run, tmp_path, text):
    (tmp_path / "gpus").write_text(text)
    status, _, err = run("--simulate", "a100-40gb", "--state", tmp_path / "gpus")
    assert status == 2
    assert "it is no state of simulated GPUs" in err


def test_a_state_of_other_gpus_is_refused(run, tmp_path):
    run("--simulate", "a100-40gb", "--state", tmp_path / "gpus")
    status, _, err = run("--simulate", "a100-40gb:2", "--state", tmp_path / "gpus")
    assert status == 2
    assert "has a100-40gb: ask for the same GPUs" in err


def test_the_help_shows_examples(capsys):
    with pytest.raises(SystemExit):
        cli.main(["devices", "--help"])
    assert "shunter devices --simulate" in capsys.readouterr().out
