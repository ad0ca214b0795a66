"""Over a network of two namespaces, with the MTUs of real ones, that loses, doubles and reorders.

What is sent at once is cut by the kernel, and nothing is put together again on the way.
"""

import asyncio
import importlib.util
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from shunter.nic_frontend.client import AsyncClient, NoCipherError, Session
from shunter.nic_frontend.client.native_client import require_cipher

KEY = bytes(range(32))
REQUEST, ANSWER = 602_112, 65_536
"""Bytes: 429 segments and 47 where the MTU is 1500, 68 and 8 where it is 9000."""
TENSORS = {"inputs": [("a", "uint8", [REQUEST])], "outputs": [("b", "uint8", [ANSWER])]}
LONG = 60
REQUESTS = 12
SHARES = {1500: 0.02, 9000: 0.05}
"""Of the packets at each MTU are lost, so many are doubled and so many overtaken."""
PROTECTED = {
    "open": (None, {}),
    "keyed": (KEY, {"key": KEY}),
    "crc": (None, {"crc": True}),
    "encrypted": (KEY, {"key": KEY, "encrypt": True}),
}


def _lossy_link():
    path = Path(__file__).with_name("lossy_link.py")
    spec = importlib.util.spec_from_file_location("nic_lossy_link", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


LINK = _lossy_link()
FAULTS = ("lost", "doubled", "overtaken")


@pytest.fixture(scope="module")
def network():
    """The link, without faults."""
    with LINK.Network() as network:
        if network.impossible:
            pytest.skip(f"no network of its own: {network.impossible}")
        yield network


@pytest.fixture(scope="module")
def servers(network, nic, built, tmp_path_factory):
    """Front ends with their workers at one end: by their key."""
    processes = nic.Processes(before=network.command(network.server))
    sites = {}
    for key in (None, KEY):
        site = sites[key] = nic.Site(processes, tmp_path_factory.mktemp("n"))
        site.serve(host="::", tcp=False, key=key and key.hex(), queue_bytes=32 << 20)
        site.worker(**TENSORS)
    yield sites
    for site in sites.values():
        site.close()
    processes.close()


@pytest.fixture(scope="module")
def at_client(network):
    """Runs a function at the other end."""
    with ThreadPoolExecutor(1, initializer=LINK.enter, initargs=(network.client,)) as thread:
        yield lambda function: thread.submit(function).result()


def url_of(site, mtu):
    host = LINK.address(mtu, LINK.SERVER)
    return f"udp://[{host}]:{site.port}" if ":" in host else f"udp://{host}:{site.port}"


numbers = count(1)
RANDOM = np.random.default_rng(5)


def request():
    """Any bytes, behind a name that no other request has; the name too."""
    name = next(numbers)
    content = RANDOM.integers(0, 256, REQUEST, np.uint8)
    content[:4] = np.frombuffer(np.uint32(name).tobytes(), np.uint8)
    return name, content


def by_session(url, options, requests):
    """One alone, and the others at once."""
    with Session(url, "m", timeout_s=LONG, **options) as session:
        first, *others = ([content] for content in requests)
        return [answer for [answer] in (session.infer(first), *session.infer_many(others))]


def by_async_client(url, options, requests):
    """The same, in an event loop."""

    async def main():
        async with AsyncClient(url, timeout_s=LONG, **options) as client:
            first, *others = (client.infer("m", content) for content in requests)
            return [await first, *await asyncio.gather(*others)]

    return asyncio.run(main())


@pytest.fixture
def options(protection):
    """Of a client; its answers must be taken from the server with the same key."""
    options = PROTECTED[protection][1]
    if options.get("encrypt"):
        try:
            require_cipher()
        except NoCipherError as error:
            pytest.skip(str(error))
    return options


@pytest.mark.parametrize("ask", [by_session, by_async_client])
@pytest.mark.parametrize("protection", PROTECTED)
@pytest.mark.parametrize("mtu", LINK.MTUS)
def test_each_request_is_answered_rightly_and_runs_once(
    network, nic, servers, at_client, mtu, protection, options, ask
):
    site = servers[PROTECTED[protection][0]]
    requests = dict(request() for _ in range(REQUESTS))
    before = network.faults(**dict.fromkeys(FAULTS, SHARES[mtu]))
    answers = at_client(lambda: ask(url_of(site, mtu), options, requests.values()))
    after = network.faults()
    for content, found in zip(requests.values(), answers, strict=True):
        assert np.array_equal(found, nic.PROCESSES_MODULE.answer_of(content, ANSWER))
    ran = site.executions()
    assert {name: ran[name] for name in requests} == dict.fromkeys(requests, 1)
    nic.until(lambda: site.function()["free"] == site.function()["entries"], "all are free")
    assert all(after[fault] > before[fault] for fault in FAULTS), "the link did nothing"
    packets = after["passed"] - before["passed"]
    smaller = [each for each in LINK.MTUS if each < mtu]
    least, *most = (len(requests) * (REQUEST + ANSWER) / each for each in (mtu, *smaller))
    assert packets > least * 0.9 and all(packets < each for each in most)
