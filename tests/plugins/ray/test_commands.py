"""What the commands of a cluster refuse, and what they write, without one."""

import importlib.util
import os

import pytest
import yaml
from typer.testing import CliRunner

from shunter.plugins.cli.main import app
from shunter.plugins.errors import UserError
from shunter.plugins.ray import cluster, local, started
from shunter.plugins.ray.node import NodeSpec
from shunter.plugins.ray.records import names
from shunter.plugins.ray.started import Started


def run(*arguments):
    return CliRunner().invoke(app, [str(each) for each in arguments])


def test_without_ray_a_command_says_how_to_get_it(monkeypatch, tmp_path):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "ray" else find(name)
    )
    for command in (("cluster", "up"), ("serve", "--cluster", "a:1")):
        found = run(*command, "--store", tmp_path, "--folder", tmp_path / "c")
        assert isinstance(found.exception, UserError)
        assert names.INSTALL in str(found.exception)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("cluster", "status"), "no cluster was started in"),
        (("cluster", "down"), "no cluster was started in"),
        (("cluster", "evict", "node-1"), "no cluster was started in"),
        (("serve", "--cluster", "nowhere"), "write HOST:PORT"),
        (("serve", "--cluster", "a:1", "--demo"), "--demo: what a cluster serves"),
        (("serve", "--cluster", "a:1", "--cluster-key", "/nowhere"), "cannot be read"),
        (("serve", "--cluster", "a:1"), "--cluster-key: name a copy"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, monkeypatch, arguments, said):
    monkeypatch.setattr(names.importlib.util, "find_spec", lambda name: True)
    monkeypatch.setattr(started, "LONGEST_PATH", 4000)
    found = run(*arguments, "--folder", tmp_path / "c")
    assert isinstance(found.exception, UserError), found.output
    assert said in str(found.exception)


def test_a_folder_whose_path_is_too_long_for_ray(tmp_path):
    with pytest.raises(UserError, match="at most 40 letters"):
        started.make_folder(tmp_path / ("x" * 40))


def test_a_service_of_skyserve(tmp_path):
    config = tmp_path / "cluster.toml"
    config.write_text("[machines]\nleast = 2\nmost = 5\n")
    found = run("cluster", "sky", "embed", "--config", config, "--store", "s3://models")
    service = yaml.safe_load(found.output)
    policy = service["service"]["replica_policy"]
    assert (policy["min_replicas"], policy["max_replicas"]) == (2, 5)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Of a cluster whose nodes are only noted: they are this process."""
    begun = started.record.started(os.getpid())
    nodes = [Started(f"node-{each}", os.getpid(), begun, "spot") for each in range(3)]
    started._write(tmp_path, "host:1", nodes)
    ended = []
    monkeypatch.setattr(started, "end_node", lambda _, name, **how: ended.append((name, how)))
    monkeypatch.setattr(started, "start_node", lambda _, spec, kind: ended.append(spec))
    return tmp_path, ended


def test_machines_of_this_host_are_all_but_the_head(folder):
    provider = local.LocalProvider(folder[0])
    provider.drain("node-2")
    for each in (provider, local.LocalProvider(folder[0])):  # of a controller that began anew
        assert [(known.name, known.is_draining) for known in each.machines()] == [
            ("node-1", False),
            ("node-2", True),
        ]


def test_new_machines_get_new_names_as_long_as_there_is_room(folder):
    provider = local.LocalProvider(folder[0])
    assert provider.acquire(local.Kind.SPOT, 2) == ["node-3", "node-4"]
    free_ports = {"ports": None}  # the cluster's own are taken on this host
    assert folder[1][0] == NodeSpec(str(folder[0]), "node-3", "host:1", described=free_ports)
    assert len(provider.acquire(local.Kind.SPOT, 99)) == local.MOST - 3


def test_a_machine_whose_time_is_over_is_ended_without_ado(folder):
    provider = local.LocalProvider(folder[0])
    local.announce(folder[0], "node-1", 600)
    provider.machines()
    assert not folder[1]
    assert provider.notices().keys() == {"node-1"}
    local.announce(folder[0], "node-2", -1)
    provider.machines()
    assert folder[1] == [("node-2", {"at_once": True})]


@pytest.mark.parametrize("name", ["node-0", "node-9"])
def test_the_head_and_strangers_cannot_be_evicted(folder, name):
    with pytest.raises(UserError, match="allowed: node-1, node-2: the head stays"):
        local.announce(folder[0], name, 30)


class FakeController:
    """Whose calls fail in this order, and then answer."""

    def __init__(self, errors):
        self.errors = list(errors)
        self.status = self

    def remote(self):
        return self


@pytest.mark.parametrize(
    ("errors", "said"),
    [
        (("ActorUnavailableError",) * 3, None),
        (("ActorUnavailableError", "ActorDiedError"), "does not answer: ActorDiedError"),
        (("GetTimeoutError",), "does not answer: GetTimeoutError"),
    ],
)
def test_a_controller_that_is_started_again_is_asked_again(monkeypatch, errors, said):
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    makes = {
        "ActorUnavailableError": lambda: ray.exceptions.ActorUnavailableError("", None),
        "ActorDiedError": ray.exceptions.ActorDiedError,
        "GetTimeoutError": ray.exceptions.GetTimeoutError,
    }
    fake = FakeController(errors)

    def get(ref, *, timeout):
        if ref.errors:
            raise makes[ref.errors.pop(0)]()
        return {"machines": []}

    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(cluster, "controller", lambda: fake)
    monkeypatch.setattr(cluster, "LOOK_S", 0)
    if said is None:
        assert cluster.ask("status") == {"machines": []}
        return
    with pytest.raises(UserError, match=said):
        cluster.ask("status")
    assert not fake.errors
