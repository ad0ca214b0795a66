"""A front end whose datagrams the kernel splits answers as one with a socket does."""

import importlib.util
from logging import WARNING
from pathlib import Path

import numpy as np
import pytest

from shunter.nic_frontend.client import Session
from shunter.nic_frontend.server.front_end import FrontEnd, Settings

REQUEST, ANSWER, REQUESTS = 150_528, 4_000, 12
"""Bytes; 107 segments at this MTU."""
TENSORS = {"inputs": [("a", "uint8", [REQUEST])], "outputs": [("b", "uint8", [ANSWER])]}
KEY = bytes(range(32))


def _veth():
    path = Path(__file__).with_name("veth.py")
    spec = importlib.util.spec_from_file_location("nic_veth", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


VETH = _veth()


@pytest.fixture(scope="module")
def network():
    try:
        with VETH.Network() as network:
            yield network
    except VETH.ImpossibleError as error:
        pytest.skip(f"no network of its own: {error}")


@pytest.fixture(scope="module")
def there(network, nic, built):
    """What starts processes in the server's namespace."""
    processes = nic.Processes(before=network.before(network.server))
    yield processes
    processes.close()


@pytest.fixture
def split_site(there, nic, tmp_path):
    """For a front end there."""
    site = nic.Site(there, tmp_path)
    yield site
    site.close()


@pytest.mark.parametrize("options", [{}, {"key": KEY}, {"key": KEY, "encrypt": True}])
@pytest.mark.parametrize("host", [VETH.SERVER4, VETH.SERVER6])
def test_requests_come_split_and_are_answered_rightly(network, nic, split_site, host, options):
    key = options.get("key")
    split_site.serve(host="::", tcp=False, xdp=VETH.INTERFACE, key=key and key.hex())
    if not network.xdp():
        pytest.skip("no AF_XDP here")
    split_site.worker(**TENSORS)
    url = f"udp://{f'[{host}]' if ':' in host else host}:{split_site.port}"
    contents = np.random.default_rng(3).integers(0, 256, (REQUESTS, REQUEST), np.uint8)

    def ask():
        with Session(url, "m", timeout_s=60, **options) as session:
            first, *others = ([content] for content in contents)
            return [answer for [answer] in (session.infer(first), *session.infer_many(others))]

    answers = network.from_client(ask)
    for content, found in zip(contents, answers, strict=True):
        assert np.array_equal(found, nic.PROCESSES_MODULE.answer_of(content, ANSWER))
    stats = split_site.look()["stats"]
    assert stats["split_datagrams"] >= REQUESTS * REQUEST / 1408
    assert stats["split_no_room"] == 0
    hellos = stats["hellos"]  # for them there is a socket
    assert stats["datagrams_in"] == stats["split_datagrams"] + hellos
    if not options.get("encrypt"):
        assert stats["copied_bytes"] < REQUESTS * ANSWER


def test_where_it_cannot_be_it_is_said(built, tmp_path, caplog):
    front_end = FrontEnd(Settings(tmp_path / "nic.sock", port=0, tcp=False, xdp="nowhere0"))
    front_end.close()
    assert caplog.record_tuples == [
        ("shunter.nic", WARNING, "no AF_XDP on nowhere0: looking at it: No such device")
    ]
