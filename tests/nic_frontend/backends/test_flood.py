"""Between two hosts: a flood of hellos, and addresses of a host that has several."""

import importlib.util
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from shunter.nic_frontend.client import Session
from shunter.nic_frontend.wire.hello import Hello

TENSORS = {"inputs": [("a", "uint8", [1024])], "outputs": [("b", "uint8", [512])]}
SPOOFED = "198.18.0.0/15"
OTHER6, THIRD6 = "fd08::3", "fd09::7"
"""More addresses of the server, one of them of another network."""
FLOODER = Path(__file__).with_name("flooder.py")


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
            at, device = network.at, ("dev", VETH.INTERFACE)
            at(network.server, "ip", "route", "add", SPOOFED, "via", VETH.CLIENT4)
            for address in (f"{OTHER6}/64", f"{THIRD6}/128"):
                at(network.server, "ip", "address", "add", address, "nodad", *device)
            at(network.client, "ip", "route", "add", f"{THIRD6}/128", "via", VETH.SERVER6)
            yield network
    except VETH.ImpossibleError as error:
        pytest.skip(f"no network of its own: {error}")


@pytest.fixture
def far_site(network, nic, built, tmp_path):
    """For a front end in the server's namespace."""
    processes = nic.Processes(before=network.before(network.server))
    site = nic.Site(processes, tmp_path)
    yield site
    site.close()
    processes.close()


@contextmanager
def flood(network, port):
    hello = Hello(bytes(16), "m").message(None).hex()
    command = [sys.executable, str(FLOODER), VETH.SERVER4, str(port), hello]
    with subprocess.Popen(
        [*network.before(network.client), *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "floods\n"
        yield
        process.communicate()


def asks(session, nic, names):
    """Ask, and look whether the answers are right."""
    for name in names:
        content = np.full(1024, name, np.uint8)
        [answer] = session.infer([content])
        assert bytes(answer) == bytes(nic.PROCESSES_MODULE.answer_of(content, 512))


def test_sessions_are_served_and_opened_under_a_flood_of_hellos(network, nic, far_site):
    far_site.serve(host="0.0.0.0", tcp=False)
    far_site.worker(**TENSORS)
    url = f"udp://{VETH.SERVER4}:{far_site.port}"
    stats = lambda: far_site.look()["stats"]  # noqa: E731
    network.from_client(_serve_under_flood, network, nic, far_site, url, stats)
    assert stats()["overflows"] == 0 and stats()["drop_length"] == 0


def _serve_under_flood(network, nic, site, url, stats):
    with Session(url, "m", timeout_s=60) as before:
        asks(before, nic, range(3))
        with flood(network, site.port):
            nic.until(lambda: stats()["hello_overflows"] > 1000, "the flood")
            asks(before, nic, range(200))
            for _ in range(5):
                with Session(url, "m", timeout_s=60) as stranger:
                    asks(stranger, nic, range(3))
            asks(before, nic, range(50))


@pytest.mark.parametrize("host", [VETH.SERVER6, OTHER6, THIRD6, VETH.OTHER4])
def test_answers_leave_from_the_address_that_was_asked(network, nic, far_site, host):
    """A client takes datagrams from nobody else: those of workers and those of the front end."""
    far_site.serve(host="::", tcp=False)
    far_site.worker(**TENSORS)
    where = f"[{host}]" if ":" in host else host

    def ask():
        with Session(f"udp://{where}:{far_site.port}", "m", timeout_s=60) as session:
            asks(session, nic, range(20))

    network.from_client(ask)
