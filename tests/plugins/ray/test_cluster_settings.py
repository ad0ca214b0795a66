"""cluster.toml."""

import os

import pytest

from shunter.plugins.errors import UserError
from shunter.plugins.ray.cluster import told
from shunter.plugins.ray.records import settings


def test_what_is_not_said_is_usual(tmp_path):
    path = tmp_path / "cluster.toml"
    path.write_text('[server]\nkind = "triton"\n[models.m]\nidempotent = false\n')
    found = settings.load(path)
    assert (found.server.kind, found.gateways.count) == ("triton", 2)
    assert not found.models["m"].idempotent


def test_options_go_over_the_file(tmp_path):
    path = tmp_path / "cluster.toml"
    path.write_text("[gateways]\nport = 9000\n")
    found, base = settings.given(path, store=tmp_path, triton=True, port=9100)
    assert (found.gateways.port, found.server.kind, base) == (9100, "triton", tmp_path)
    assert found.server.store == str(tmp_path)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"servers": {}}, "servers = {} is unknown; allowed: "),
        ({"server": 3}, "server = 3 is not allowed; allowed: a table"),
        ({"server": {"kind": "x"}}, "server.kind = 'x' is not allowed; allowed: torchserve or tri"),
        ({"gateways": {"count": 0}}, "gateways.count = 0 is not allowed; allowed: a whole number"),
        ({"gateways": {"gates": 1}}, "gateways.gates = 1 is unknown; allowed: address, count"),
        ({"gateways": {"address": "here"}}, "gateways.address = 'here' is not allow"),
        ({"machines": {"provider": "aws"}}, "aws.region is missing"),
        ({"machines": {"least": -1}}, "machines.least = -1 is not allowed; allowed: a whole"),
        ({"models": {"m": {"size": 1}}}, "models.m.size = 1 is unknown; allowed: archive, ide"),
        ({"models": {"m": {"idempotent": 1}}}, "models.m.idempotent = 1 is not all"),
    ],
)
def test_what_is_wrong_is_named(document, said):
    with pytest.raises(UserError) as refused:
        settings.parse(document)
    assert str(refused.value).startswith(said)


@pytest.mark.parametrize("text", ["[server", "\x00"])
def test_what_is_no_toml(tmp_path, text):
    path = tmp_path / "cluster.toml"
    path.write_text(text)
    with pytest.raises(UserError, match="is not TOML"):
        settings.load(path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="pipe cannot be read: allowed: a regular file"):
        settings.load(tmp_path / "pipe")


def test_a_port_that_is_none():
    with pytest.raises(UserError, match="--port 70000"):
        settings.given(None, store=None, triton=False, port=70000)


@pytest.mark.parametrize(
    ("kind", "passed_on"), [("torchserve", None), ("triton", "(?i)x-shunter.*")]
)
def test_class_and_deadline_reach_the_servers_as_headers(tmp_path, kind, passed_on):
    found = told(settings.parse({"server": {"kind": kind}}), tmp_path, is_local=True)
    assert found["settings"].get("http-header-forward-pattern") == passed_on
