"""What is read of a host: this one, and made ones."""

import socket
import sys

import pytest

from shunter.plugins.doctor.facts import gather, java_version
from shunter.plugins.doctor.records import Built
from shunter.plugins.torchserve.build import JarError


@pytest.fixture
def environ(tmp_path, monkeypatch):
    """Where nothing else is."""
    monkeypatch.chdir(tmp_path)
    return {"SHUNTER_RUNTIME_DIR": str(tmp_path), "PATH": "/usr/bin"}


@pytest.fixture
def roots(tmp_path):
    """A host that tells nothing."""
    made = {name: tmp_path / name for name in ("sys_root", "proc_root", "dev_root")}
    for path in made.values():
        path.mkdir()
    return made


def test_this_host(environ):
    facts = gather((), environ)
    assert facts.software.python == sys.version_info[:2]
    assert facts.software.torchserve.startswith("0.12")
    assert set(facts.software.compiled) == {
        "TorchServe's jar",
        "the network front end",
        "the program of pools",
        "Triton's backend",
    }
    assert facts.host.cpus >= 1
    assert facts.host.runtime_free > 0
    assert facts.host.runtime_writable
    assert facts.host.servers == 0
    assert facts.gpus.names or facts.gpus.problem
    assert (facts.settings, facts.settings_problem) == (None, "")


def test_a_host_that_tells_nothing(environ, roots):
    facts = gather((), environ, **roots)
    assert facts.host.receive_bytes is None
    assert facts.host.clock == ""
    assert facts.host.memory == float("inf")
    assert not facts.gpus.device_files


def test_what_files_say(environ, roots):
    clock = roots["sys_root"] / "devices/system/clocksource/clocksource0/current_clocksource"
    clock.parent.mkdir(parents=True)
    clock.write_text("hpet\n")
    most = roots["proc_root"] / "sys/net/core/rmem_max"
    most.parent.mkdir(parents=True)
    most.write_text("212992\n")
    (roots["dev_root"] / "nvidia0").touch()
    facts = gather((), environ, **roots)
    assert (facts.host.clock, facts.host.receive_bytes) == ("hpet", 212992)
    assert facts.gpus.device_files


def test_ports(environ):
    with socket.socket() as busy, socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # bound, so nobody else gets it
        for each in (busy, free):
            each.bind(("127.0.0.1", 0))
        busy.listen()
        taken, open_port = busy.getsockname()[1], free.getsockname()[1]
        assert gather((taken, open_port), environ).host.taken == (taken,)


@pytest.mark.parametrize("home", ["/nowhere", "{}"])
def test_no_java(environ, tmp_path, home):
    facts = gather((), environ | {"JAVA_HOME": home.format(tmp_path)})
    assert facts.software.java is None
    assert not facts.software.javac


def test_a_folder_that_is_not_there(environ, tmp_path):
    host = gather((), environ | {"SHUNTER_RUNTIME_DIR": str(tmp_path / "not")}).host
    assert (host.runtime_free, host.runtime_writable, host.servers) == (None, False, 0)


def test_settings_that_cannot_be_used(environ, tmp_path):
    (tmp_path / "shunter.toml").write_text("[batching]\nalpha = 2\n")
    facts = gather((), environ)
    assert facts.settings == str(tmp_path / "shunter.toml")
    assert "alpha" in facts.settings_problem


def test_what_is_compiled(monkeypatch, environ):
    states = {"old": False, "gone": None, "good": True}
    monkeypatch.setattr("shunter.plugins.doctor.facts.hosts.compiled", lambda: states)
    found = gather((), environ).software.compiled
    assert found == {"old": Built.STALE, "gone": Built.MISSING, "good": Built.FRESH}


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ('openjdk version "21" 2023-09-19', 21),
        ('openjdk version "17.0.9" 2023-10-17', 17),
        ('java version "1.8.0_392"', 8),
        ("Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version \"17.0.9\"", 17),
        ("segmentation fault", None),
    ],
)
def test_the_version_of_java(said, version):
    assert java_version(said) == version


def test_without_torchserve_its_jar_is_not_as_it_should_be(monkeypatch, environ):
    def missing():
        raise JarError("TorchServe is not installed")

    monkeypatch.setattr("shunter.plugins.torchserve.build.torchserve_version", missing)
    found = gather((), environ).software.compiled
    assert found["TorchServe's jar"] in (Built.STALE, Built.MISSING)
    assert found["Triton's backend"] is gather((), environ).software.compiled["Triton's backend"]
