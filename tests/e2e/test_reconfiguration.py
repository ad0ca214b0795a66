"""The controller finds a model's best configuration and changes to it without anyone noticing."""

import glob
import itertools
import json
import os
import signal
from pathlib import Path

import psutil
import pytest

from shunter.allocator.cpus.discovery import read_topology
from shunter.allocator.planning.configuration import InstanceGroup
from shunter.batching.page.control_page import ControlPage
from shunter.batching.page.layout import ChangeState
from shunter.batching.page.records import SlotChange
from shunter.batching.page.slices import ALL_CPUS, Slice, has_device, of_cpus
from shunter.plugins.control.fixed_policy import with_configuration
from shunter.plugins.control.reconfiguration import Wanted
from shunter.plugins.torchserve.server import free_ports

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(
        read_topology().cores < 2 or read_topology().limited, reason="two cores of its own needed"
    ),
]

# One request is soonest on both cores, eight are on one core each.
PROFILE = {(1, 1): 8.0, (1, 8): 16.0, (2, 1): 5.0, (2, 8): 26.0}
FAT, THIN = "1x2x8", "2x1x8"


@pytest.fixture
def profiled(serve):
    """Registers a profiled model."""

    def profiled(config=None, **query):
        query = {"batch_size": 8, **query}
        return serve(profile=PROFILE, config={"shunter": config or {}}, **query)

    return profiled


@pytest.fixture
def runs(wait_until):
    """Waits until a model runs a configuration and nothing else."""

    def runs(model, configuration):
        def settled():
            state = model.state()
            return state["state"] == "serving" and state["configuration"] == configuration

        wait_until(f"it runs {configuration}", settled)
        return model.state()

    return runs


def cores_of(model):
    return [sorted(psutil.Process(pid).cpu_affinity()) for pid in model.pids()]


def test_the_configuration_follows_the_load_both_ways(
    site, profiled, load, pings, runs, wait_until
):
    model = profiled()
    with pings(site), load(model, clients=1, sleep_ms=5):
        with load(model, clients=16, sleep_ms=20):
            runs(model, THIN)
            wait_until("the old ones ended", lambda: len(model.pids()) == 2)
            cores = cores_of(model)
            assert [len(each) for each in cores] == [1, 1] and cores[0] != cores[1]
            if model.tells_more:
                described = model.describe()
                # What was registered: the controller's choice is no scale call.
                assert (described["minWorkers"], described["maxWorkers"]) == (1, 1)
                assert model.configuration()["registered"] == "1x0x8"
        runs(model, FAT)
        wait_until("the old ones ended", lambda: len(model.pids()) == 1)
        assert [len(each) for each in cores_of(model)] == [2]
    assert model.state()["auto"] is True
    assert model.ask()["threads"] == "2"


def test_a_model_of_batch_size_1_gets_more_instances_and_is_not_batched(profiled, load, runs):
    model = profiled(batch_size=1)
    with load(model, clients=16, sleep_ms=20):
        runs(model, "2x1x1")
        assert set(model.state()["batches"]) == {"1"}


@pytest.fixture
def stays(site):
    """Asserts that a model stays as it is over many looks of the controller."""

    def stays(model):
        before = model.configuration()
        site.wait_cycles(25)
        # Its workers may take longer than that to load, but a change would be wanted by now.
        assert site.commands(model).slot.wanted_request == 0
        assert model.configuration() == before
        assert before["state"] == "serving"

    return stays


@pytest.mark.both_servers
def test_a_model_without_a_profile_stays_as_it_is(serve, load, stays):
    model = serve(batch_size=8)
    with load(model, clients=16, sleep_ms=5):
        stays(model)
    assert (model.state()["generation"], model.state()["last_change"]) == (1, "")


def test_what_an_operator_sets_stays_until_he_says_auto_again(profiled, load, runs, stays):
    model = profiled()
    assert model.configure(configuration="1x1x8").status == 202
    runs(model, "1x1x8")
    assert model.configuration()["auto"] is False
    with load(model, clients=16, sleep_ms=20):
        stays(model)
        assert model.configure(auto="true")["auto"] is True
        runs(model, THIN)
        model.scale(1)
        assert model.configuration()["auto"] is False
    assert model.state()["configuration"] == "1x1x8"


def test_a_change_that_fails_is_undone_told_and_tried_again_later(
    site, profiled, load, pings, runs, wait_until
):
    model = profiled()
    before, configuration = model.pids(), model.configuration()["configuration"]
    model.no_load.touch()
    with pings(site), load(model, clients=16, sleep_ms=20):
        wait_until("it was undone", lambda: "undone" in model.state()["last_change"])
        wait_until("it serves", lambda: model.configuration()["state"] == "serving")
        state = model.configuration()
        assert state["configuration"] == configuration
        assert "told to fail at loading" in state["last_change"]
        assert model.pids() == before
        assert "told to fail at loading" in str(site.page_status())
        model.no_load.unlink()
        runs(model, THIN)


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("", "status 500: Unknown exception: RuntimeError: told to fail at loading"),
        ("memory", "status 507: System out of memory: MemoryError: told to need too much"),
        ("kill", "status 50"),
        ("time-out", "did not load within 2 s"),
    ],
)
def test_a_generation_that_cannot_load_leaves_the_old_one_serving(
    site, serve, load, pings, wait_until, how, told
):
    model = serve(batch_size=8, config={"startupTimeout": 2} if how == "time-out" else {})
    before = model.pids()
    if how == "time-out":
        model.slow_load.touch()
    else:
        model.no_load.write_text(how)
    with pings(site), load(model, clients=4, sleep_ms=5) as clients:
        assert model.configure(configuration="2x1x8").status == 202
        state = model.changed()
        enough = len(clients.answers) + 50
        wait_until("load", lambda: len(clients.answers) > enough)
    assert {answer["pid"] for answer in clients.answers} == set(before)
    assert state["configuration"] == "1x0x8"
    for text in (state["last_change"], model.configuration()["last_change"]):
        assert "was undone" in text and told in text
    assert told in str(site.page_status())
    wait_until("no other is left", lambda: model.pids() == before)


def test_killing_the_controller_in_the_middle_of_a_change_loses_nothing(
    site, profiled, load, pings, runs, wait_until
):
    model = profiled()
    model.slow_load.touch()
    with pings(site), load(model, clients=16, sleep_ms=20):
        model.wait_slow_load()
        old = site.status()["controller"]["pid"]
        os.kill(old, signal.SIGKILL)
        model.slow_load.unlink()
        runs(model, THIN)
        wait_until("another one", lambda: site.status()["controller"]["pid"] not in (old, None))
    # The new one knows nothing of that change, and goes on from there.
    runs(model, FAT)


def test_killing_a_new_worker_in_the_middle_of_a_change_undoes_it(
    site, serve, load, wait_until
):
    model = serve(batch_size=8)
    before = model.pids()
    model.slow_load.touch()
    with load(model, clients=4, sleep_ms=5) as clients:
        model.configure(configuration="2x1x8")
        model.wait_slow_load()
        (new,) = (p for p in site.server.worker_pids() if p in model.loading())
        os.kill(new, signal.SIGKILL)
        model.slow_load.unlink()
        assert "was undone" in model.changed()["last_change"]
        assert clients.answers
    assert model.pids() == before


@pytest.mark.both_servers
def test_cores_come_back_when_a_worker_is_killed(profiled, load, runs, wait_until):
    model = profiled(config={"configuration": "2x1x8", "cores": "auto"})
    first = cores_of(model)
    assert sorted(map(len, first)) == [1, 1] and first[0] != first[1]
    killed = model.pids()[0]
    os.kill(killed, signal.SIGKILL)
    wait_until("it is back", lambda: len(set(model.pids()) - {killed, -1}) == 2)
    wait_until("it has a core", lambda: sorted(cores_of(model)) == sorted(first))


def test_a_change_for_which_there_is_no_memory_is_refused(site, serve):
    model = serve(batch_size=8)
    state = model.state()["configuration"]
    answer = model.configure(configuration="9999x1x8")  # the most there may be
    assert answer.status == 507, answer
    assert "MiB are available" in answer["message"]
    assert model.state()["configuration"] == state
    assert model.ask().status == 200


@pytest.mark.parametrize("given", [{"cores": "0"}, {"groups": [{"configuration": "1x1x8"}]}])
def test_a_model_whose_place_is_given_stays_in_the_operators_hands(site, serve, given):
    model = serve(batch_size=8, config={"shunter": given})
    assert model.configuration()["auto"] is False
    if "cores" in given:
        for more in ({}, {"configuration": "2x1x8"}, {"restart": "true"}):
            answer = model.configure(auto="true", **more)
            assert answer.status == 400 and "has cores of its own" in answer["message"]
        state = model.state()
        assert (state["generation"], state["state"], state["last_change"]) == (1, "serving", "")
    archive = site.archives.add("both", config={"shunter": {**given, "auto": True}})
    answer = site.register("both", archive)
    assert answer.status == 400 and "not possible together with" in answer["message"]


def test_cores_that_each_worker_takes_for_itself_leave_it_to_the_controller(serve):
    model = serve(batch_size=8, config={"shunter": {"cores": "auto"}})
    assert model.configuration()["auto"] is True


def _places(model):
    """Affinity and device of each worker."""
    found = []
    for pid in model.pids():
        pairs = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
        variables = dict(pair.split("=", 1) for pair in pairs if pair)
        found.append((os.sched_getaffinity(pid), variables.get("CUDA_VISIBLE_DEVICES")))
    return sorted(found, key=str)


def test_the_controller_says_where_groups_run_and_may_say_it_again(site, serve, wait_until):
    model = serve(batch_size=8)
    here, default = os.sched_getaffinity(0), os.environ.get("CUDA_VISIBLE_DEVICES")
    cpu = max(here)
    with ControlPage.attach(site.runtime / "control") as page:
        slot = next(s for s in page.live_slots() if page.read_identity(s).model_name == model.name)
        commands = page.read_commands(slot)

        numbers = itertools.count(1000)

        def want(*slices):
            number = next(numbers)
            wanted = Wanted(number, (InstanceGroup(1, 1, 8),) * 2, False, slices)

            def serves():
                # The controller, which wants nothing, writes what it wants after each change.
                if page.wanted_request(slot) != number:
                    page.write_commands(slot, *with_configuration(commands, wanted))
                return page.read_change(slot) == SlotChange(number, ChangeState.SERVES)

            wait_until("the change", serves)
            wait_until("two workers", lambda: len(model.pids()) == 2)
            assert model.configuration()["auto"] is True
            return [group.group_slices for group in page.read_groups(slot, 2)]

        on_cpu, on_device = want(Slice(of_cpus([cpu])), Slice(device="GPU-none"))
        assert on_cpu == of_cpus([cpu])
        assert has_device(on_device) and not on_device & ALL_CPUS
        assert _places(model) == sorted([({cpu}, default), (here, "GPU-none")], key=str)
        assert want() == [ALL_CPUS] * 2
        assert _places(model) == [(here, default)] * 2


def test_a_change_waits_for_the_first_workers_and_their_registration_is_answered_200(
    site, serve, wait_until, tmp_path
):
    slow = tmp_path / "slow"
    slow.touch()
    number = 1000
    with ControlPage.attach(Path(site.status()["runtime"]) / "control") as page:
        others = set(page.live_slots())
        section = {"environment": {"ECHO_SLOW_LOAD": str(slow)}}
        registered = site.pool.submit(serve, batch_size=8, config={"shunter": section})
        wait_until("its worker loads", lambda: list(tmp_path.glob("slow.*")))
        [slot] = set(page.live_slots()) - others
        wait_until("commands", lambda: page.command_sequence(slot))
        wanted = Wanted(number, (InstanceGroup(1, 1, 8),) * 2, False)
        commands = with_configuration(page.read_commands(slot), wanted)

        def want():
            # The controller, which wants nothing, writes that again and again.
            if page.wanted_request(slot) != number:
                page.write_commands(slot, *commands)

        enough = page.header().controller_cycles + 15

        def looked():
            want()
            return page.header().controller_cycles >= enough

        wait_until("housekeeping has seen what is wanted", looked)
        assert len(list(tmp_path.glob("slow.*"))) == 1
        assert page.read_change(slot).change_request != number
        slow.unlink()
        model = registered.result()

        def serves():
            want()
            return page.read_change(slot) == SlotChange(number, ChangeState.SERVES)

        wait_until("the change", serves)
        wait_until("two workers", lambda: len(model.pids()) == 2)


def test_auto_together_with_given_cores_is_refused_before_anything_changes(serve):
    model = serve(batch_size=8)
    before = model.configuration()
    for query in ({"cores": "0"}, {"configuration": "2x1x8", "cores": "0"}):
        answer = model.configure(auto="true", **query)
        assert answer.status == 400 and "places or classes" in answer["message"]
    assert model.configuration() == before
    assert model.configure(cores="0").status == 202
    model.changed()
    answer = model.configure(auto="true")
    assert answer.status == 400 and "places or classes" in answer["message"]
    assert model.configure(cores="auto", auto="true").status == 202
    assert model.changed()["auto"] is True


def test_who_may_change_a_model_is_saved_at_once_and_never_costs_the_model(
    harness, make_server, make_bare, archives, plugins, tmp_path
):
    common = {"folder": tmp_path / "server", "ports": free_ports(), "snapshots": True}

    def saved(site):
        config = site.server.folder / "logs/config"
        assert all(map(Path.is_file, map(Path, glob.glob(f"{config}/*"))))
        newest = max((config / ".shunter").iterdir())
        row = json.loads(newest.read_text())["models"]["kept/1.0"]
        return row["configuration"], row["auto"]

    server = make_server(plugins, **common)
    with harness.running(server, archives, tmp_path, patience_s=30) as site:
        model = site.add("kept", batch_size=8)
        assert saved(site) == ("1x0x8", True)
        model.configure(configuration="1x0x4")
        assert saved(site) == ("1x0x4", False)
        model.configure(auto="true")
        assert saved(site) == ("1x0x4", True)
    config = server.folder / "logs/config"
    (config / ".shunter").rename(config / "shunter")  # where earlier versions kept it
    # From now on the controller must not; the snapshot says that it may.
    archives.add("kept", config={"shunter": {"cores": "0"}})
    server = make_bare(model_store=archives.folder, plugins=plugins, **common)
    with harness.running(server, archives, tmp_path) as site:
        again = model.moved(site)
        state = again.configuration()
        assert (state["configuration"], state["auto"]) == ("1x0x4", False)
        assert again.ask().status == 200


def test_more_workers_of_which_one_does_not_load_are_taken_back(serve, load, wait_until):
    model = serve(batch_size=8)
    before = model.pids()
    model.no_load.touch()
    with load(model, clients=4, sleep_ms=5) as clients:
        assert model.configure(configuration="3x0x8").status == 202
        wait_until("undone", lambda: "was undone" in model.state()["last_change"])
        enough = len(clients.answers) + 50
        wait_until("load", lambda: len(clients.answers) > enough)
    assert model.state()["configuration"] == "1x0x8"
    assert "told to fail at loading" in model.state()["last_change"]
    wait_until("no other is left", lambda: model.pids() == before)
    model.no_load.unlink()
    model.configure(configuration="2x0x8")
    wait_until("two", lambda: len(model.pids()) == 2)


def test_bad_cores_are_answered_400(serve):
    model = serve(batch_size=8)
    for text in ("all", "0-", "3-1", "-1"):
        answer = model.configure(cores=text)
        assert answer.status == 400 and "cores: " in answer["message"], answer
    answer = model.configure(configuration="1x1x8", atuo="true")
    unknown = '"atuo" is unknown; allowed: configuration, cores, restart, auto; did you mean auto?'
    assert (answer.status, answer["message"]) == (400, unknown)
    answer = model.configure(auto="maybe")
    assert answer.status == 400 and "allowed: true, false" in answer["message"]


def test_cores_that_cannot_be_had_are_refused_and_crowding_is_told(serve):
    model = serve(batch_size=4)
    cpus = len(psutil.Process().cpu_affinity())
    text = f"{cpus}x4x4"
    before = model.configuration()
    refused = model.configure(configuration=text, cores="auto")
    assert refused.status == 400
    assert f"{4 * cpus} threads, {cpus} CPUs" in refused["message"]
    assert model.configuration() == before
    crowded = model.configure(configuration=f"1x{cpus + 1}x4")
    assert crowded.status == 202 and f"{cpus + 1} threads share {cpus} CPUs" in crowded["warning"]
    model.changed()
    assert "warning" not in model.configure(configuration="1x1x4").json
    model.changed()
    assert model.configure(restart="true").status == 202
    model.changed()
