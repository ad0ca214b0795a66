"""How a server ends, and what is left of it."""

import contextlib
import os
import re
import shutil
import signal
from pathlib import Path

import psutil
import pytest

from shunter.plugins.torchserve import isolation

pytestmark = pytest.mark.e2e


def _add(site, name="ordered", **options):
    return site.add(name, batch_size=2, **options)


def _processes(site):
    """The server's JVM, workers, controller and network front end."""
    jvm = psutil.Process(site.server.pid)
    return [jvm, *jvm.children(recursive=True)]


def _end(site, wait_until, processes, runtime):
    wait_until("all processes end", lambda: not any(map(_runs, processes)))
    assert not runtime.exists()
    assert site.server.stop() == 0


def _runs(process):
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


@pytest.fixture
def start(harness, archives, plugins, settings, make_server, tmp_path):
    """Starts servers of the test's own."""
    with contextlib.ExitStack() as stack:
        numbers = iter(range(9))

        def start(**options):
            # At any port: several run at once.
            own = tmp_path / "shunter.toml"
            own.write_text(re.sub(r"(?m)^port = .*", "port = 0", settings.read_text()))
            config = {"shunter_config": str(own)}
            server = make_server(plugins, config=config, **options)
            folder = tmp_path / f"site{next(numbers)}"
            folder.mkdir()
            return stack.enter_context(harness.running(server, archives, folder))

        yield start


@pytest.fixture
def interruptible():
    """Who runs in the background ignores SIGINT, and so would the server."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_server_answers_what_it_took_and_leaves_nothing(start, wait_until, number):
    site = start()
    model = _add(site)
    runtime = Path(site.status()["runtime"])
    wait_until("the front end serves", lambda: site.status()["front_end"]["port"])
    processes = _processes(site)
    assert len(processes) == 4 and runtime.is_dir()
    gate, futures = model.hold()
    futures += [model.queue(f"q{i}") for i in range(5)]
    os.kill(site.server.pid, number)
    wait_until("it drains", lambda: site.status()["draining"])
    refused = model.ask("late")
    assert refused.status == 503 and "shutting down" in refused["message"]
    ping = site.inference("GET", "/ping")
    assert (ping.status, ping["status"]) == (500, "Unhealthy")
    assert not any(future.done() for future in futures)
    gate.open()
    assert [future.result()["id"] for future in futures] == ["held", *(f"q{i}" for i in range(5))]
    assert model.order() == ["held", *(f"q{i}" for i in range(5))]
    _end(site, wait_until, processes, runtime)


@pytest.fixture
def runtime():
    """A folder that two servers share as the parent of their runtime folders."""
    folder = isolation.shared_memory_folder()
    yield folder
    shutil.rmtree(folder)


def test_of_two_servers_on_one_host_one_dies_and_the_other_serves_on(
    start, runtime, load, wait_until
):
    shared = {"SHUNTER_RUNTIME_DIR": str(runtime)}
    one, other = start(env=shared), start(env=shared)
    dying, living = _add(one), _add(other)
    folders = [Path(site.status()["runtime"]) for site in (one, other)]
    assert {folder.parent for folder in folders} == {runtime} and len(set(folders)) == 2
    processes = _processes(one)
    with load(living) as clients:
        assert dying.ask().status == 200
        os.kill(one.server.pid, signal.SIGKILL)
        wait_until("its processes end", lambda: not any(map(_runs, processes)))
        enough = len(clients.answers) + 100
        wait_until("load", lambda: len(clients.answers) > enough)
    assert sorted(folders) == sorted(runtime.iterdir())  # a killed one cannot tidy up
    third = start(env=shared)
    assert sorted([folders[1], Path(third.status()["runtime"])]) == sorted(runtime.iterdir())
    assert living.ask().status == 200
    assert other.status()["controller"]["restarts"] == 0


def test_the_stop_command_drains_too(start, archives, wait_until):
    site = start()
    model = _add(site)
    processes, runtime = _processes(site), Path(site.status()["runtime"])
    gate, futures = model.hold()
    # Its pid file is in the temporary folder.
    environment = processes[0].environ()
    command = [isolation.torchserve_command(), "--stop"]
    stop = psutil.Popen(command, env=environment, stdout=-3, stderr=-3)
    wait_until("it drains", lambda: site.status()["draining"])
    gate.open()
    assert futures[0].result()["id"] == "held"
    assert stop.wait(30) == 0
    _end(site, wait_until, processes, runtime)
