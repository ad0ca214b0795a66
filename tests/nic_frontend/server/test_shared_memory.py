"""Clients on the same host whose inputs lie where workers read them."""

import contextlib
import gc
import mmap
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from shunter.batching.queue.native import REGIONS
from shunter.nic_frontend.client import Client, Session
from shunter.nic_frontend.client.requests.calls import DEFAULT
from shunter.nic_frontend.server import reception
from shunter.nic_frontend.server.sessions import origin_of_user
from shunter.nic_frontend.wire.layout import (
    WANT_SHARED_MEMORY,
    Flags,
    MessageType,
    WireStatus,
)

KEY = bytes(range(32))
LONG = 60
INPUTS = [("float32", (7, 3)), ("uint8", (5,)), ("int64", (0,)), ("int32", ())]
OUTPUTS = [("float32", (7, 3)), ("int64", (6,))]


def infer(inputs, outputs):
    a, b, _, c = inputs
    outputs[0].copy_(a * 2)
    outputs[1][:, :5] = b
    outputs[1][:, 5] = c


def arrays(i):
    return [
        np.arange(21, dtype=np.float32).reshape(7, 3) + i,
        np.full(5, i % 251, np.uint8),
        np.zeros(0, np.int64),
        np.array(-i, np.int32),
    ]


def is_answer(found, i):
    a, b, _, c = arrays(i)
    return (found[0] == a * 2).all() and found[1].tolist() == [*b.tolist(), int(c)]


@pytest.fixture
def service(make_service):
    made = make_service()
    made.worker = made.serve("m", INPUTS, OUTPUTS, infer)
    return made


def regions_of(service):
    return service.front_end.functions.find("m", "").regions


def gone(service):
    """Nothing is shared any more."""
    service.until(lambda: len(regions_of(service)) == 0, "all memory is let go of")


# ---- what is answered


def test_inputs_are_not_sent_and_answers_are_the_same(service):
    free = service.front_end.path.stats()["landing_free"]
    with Session(service.url("unix"), "m", timeout_s=LONG) as session:
        assert session.shares_memory
        for i in range(3):
            assert is_answer(session.infer(arrays(i)), i)
        for i, found in enumerate(session.infer_many([arrays(i) for i in range(300)])):
            assert is_answer(found, i)
        batch = [np.stack(each) for each in zip(*map(arrays, range(20)), strict=True)]
        for i, found in enumerate(zip(*session.infer_batch(batch), strict=True)):
            assert is_answer(found, i)
        for i in range(300, 500):
            buffer = session.buffer()
            for place, array in zip(buffer, arrays(i), strict=True):
                place[...] = array
            assert is_answer(session.infer(buffer), i)
        strided = arrays(4)
        strided[0] = np.asfortranarray(strided[0])
        assert is_answer(session.infer(strided), 4)
    stats = service.front_end.path.stats()
    assert stats["landing_free"] == free
    assert stats["copied_bytes"] == 0 and stats["gathered_bytes"] == 524 * (84 + 5 + 4)
    gone(service)


def test_a_buffer_is_the_memory_that_workers_read(service):
    with Session(service.url("unix"), "m", timeout_s=LONG) as session:
        first = session.buffer()
        for place, array in zip(first, arrays(1), strict=True):
            place[...] = array
        assert isinstance(first[0].base, mmap.mmap)
        assert first[0].ctypes.data == session.buffer()[0].ctypes.data
        assert is_answer(session.infer(first), 1)
        assert first[0].ctypes.data != session.buffer()[0].ctypes.data
        # An old one is an array like others; so is one in whose place another input belongs.
        for place, array in zip(first, arrays(2), strict=True):
            place[...] = array
        assert is_answer(session.infer(first), 2)
    assert (first[0] == arrays(2)[0]).all()  # it outlives the session


def test_inputs_in_each_others_place_are_right(make_service):
    service = make_service()
    shape = [("float32", (10_000,))] * 2

    def both(inputs, outputs):
        for each, result in zip(inputs, outputs, strict=True):
            result.copy_(each)

    service.serve("m", shape, shape, both)
    with Session(service.url("unix"), "m", timeout_s=LONG) as session:
        one, other = session.buffer()
        one[:], other[:] = 1, 2
        again = session.infer([one, other])
        assert (again[0] == 1).all() and (again[1] == 2).all()
        assert session.native.numbers()["copied"] == 0
        one, other = session.buffer()
        one[:], other[:] = 1, 2
        found = session.infer([other, one])
        assert (found[0] == 2).all() and (found[1] == 1).all()
        assert session.shares_memory and session.native.numbers()["copied"] == 2 * 40_000


@pytest.mark.parametrize(
    ("scheme", "options", "shares"),
    [
        ("unix", {}, True),
        ("unix", {"shared_memory": False}, False),
        ("unix", {"crc": True}, False),
        ("tcp", {}, False),
        ("udp", {}, False),
    ],
    ids=str,
)
def test_who_shares_memory(service, scheme, options, shares):
    with Client(service.url(scheme), timeout_s=LONG, **options) as client:
        assert client.model("m").shares_memory == shares
        assert is_answer(client.infer("m", arrays(1)), 1)
        buffer = client.model("m").buffer()
        for place, array in zip(buffer, arrays(2), strict=True):
            place[...] = array
        assert is_answer(client.infer("m", buffer), 2)


@pytest.mark.parametrize("encrypt", [False, True])
def test_with_a_key_headers_are_tagged_and_encrypted_sessions_share_nothing(make_service, encrypt):
    service = make_service(key=KEY)
    service.serve("m", INPUTS, OUTPUTS, infer)
    with Session(service.url("unix"), "m", key=KEY, encrypt=encrypt, timeout_s=LONG) as session:
        assert session.shares_memory is not encrypt
        assert is_answer(session.infer(arrays(1)), 1)


def test_an_asynchronous_client_shares_it_too(service):
    import asyncio

    from shunter.nic_frontend.client import AsyncClient

    async def ask():
        async with AsyncClient(service.url("unix"), timeout_s=LONG) as client:
            found = await asyncio.gather(*[client.infer("m", arrays(i)) for i in range(200)])
        return all(is_answer(each, i) for i, each in enumerate(found))

    before = service.front_end.path.stats()["bytes_in"]
    assert asyncio.run(ask())
    assert service.front_end.path.stats()["bytes_in"] - before < 200 * 2 * 64


# ---- who comes and goes


def test_sessions_beyond_the_regions_go_without_until_others_have_ended(service):
    def opened():
        return Session(service.url("unix"), "m", timeout_s=LONG)

    sessions = [opened() for _ in range(REGIONS + 2)]
    assert [each.shares_memory for each in sessions] == [True] * (REGIONS - 1) + [False] * 3
    for i, each in enumerate(sessions):
        assert is_answer(each.infer(arrays(i)), i)
    for each in sessions[:3]:
        each.close()
    service.until(lambda: len(regions_of(service)) == REGIONS - 4, "three are let go of")
    more = [opened() for _ in range(3)]
    assert all(each.shares_memory for each in more)
    for i, each in enumerate([*sessions[3:], *more]):
        assert is_answer(each.infer(arrays(i)), i)
        each.close()
    gone(service)


def test_one_user_leaves_some_to_others_and_whose_the_front_end_is_may_have_all(
    service, monkeypatch
):
    user = 12345
    monkeypatch.setattr(reception, "origin_of_stream", lambda _: origin_of_user(user))
    with contextlib.ExitStack() as stack:

        def opened(count):
            made = [Session(service.url("unix"), "m", timeout_s=LONG) for _ in range(count)]
            shares = [stack.enter_context(each).shares_memory for each in made]
            assert shares == sorted(shares, reverse=True)
            return sum(shares)

        assert opened(REGIONS) == REGIONS // 2
        user += 1
        assert opened(REGIONS) == REGIONS // 4
        user = os.getuid()
        assert opened(2) == 2
        user += 2**16
        left = REGIONS - 1 - REGIONS // 2 - REGIONS // 4 - 2
        assert opened(REGIONS) == (left + 1) // 2
        assert len(regions_of(service)) == REGIONS - 1 - left // 2
    gone(service)


def test_workers_that_come_later_have_it_and_those_that_go_keep_nothing(service):
    with Session(service.url("unix"), "m", timeout_s=LONG) as session:
        assert is_answer(session.infer(arrays(1)), 1)
        for i in range(2):
            service.worker.close()
            service.worker = service.serve("m", INPUTS, OUTPUTS, infer)
            assert session.shares_memory and is_answer(session.infer(arrays(i)), i)
        second = service.serve("m", INPUTS, OUTPUTS, infer)
        for i, found in enumerate(session.infer_many([arrays(i) for i in range(200)])):
            assert is_answer(found, i)
        second.close()
    gone(service)


def test_after_a_restart_of_the_front_end_the_client_shares_memory_again(service):
    with Session(service.url("unix"), "m", timeout_s=LONG) as session:
        old = session.buffer()
        for place, array in zip(old, arrays(5), strict=True):
            place[...] = array
        service.stop()
        service.start()
        service.wait_for("m")
        assert is_answer(session.infer(old, idempotent=True), 5)
        assert session.shares_memory
    gone(service)


def test_what_a_client_writes_meanwhile_spoils_only_its_own_answers(service):
    with (
        Session(service.url("unix"), "m", timeout_s=LONG) as bad,
        Session(service.url("unix"), "m", timeout_s=LONG) as good,
    ):
        is_over = threading.Event()

        def spoil():
            memory = np.frombuffer(bad.buffer()[0].base, np.uint8)
            while not is_over.is_set():
                memory += 37

        threads = [threading.Thread(target=spoil)]
        threads += [
            threading.Thread(target=lambda: bad.infer_many([arrays(i) for i in range(200)]))
        ]
        for each in threads:
            each.start()
        try:
            for i, found in enumerate(good.infer_many([arrays(i) for i in range(300)])):
                assert is_answer(found, i)
        finally:
            is_over.set()
            for each in threads:
                each.join()
    gc.collect()
    gone(service)


@pytest.mark.parametrize("seed", [1, 2])
def test_whoever_comes_and_goes_every_answer_is_to_ones_own_request(service, seed):
    service.serve("m", INPUTS, OUTPUTS, infer)

    def ask(session, chance):
        i = chance.randrange(1 << 20)
        how = chance.randrange(3)
        if how == 0:
            many = [arrays(i + k) for k in range(chance.randrange(1, 80))]
            found = session.infer_many(many)
            return all(is_answer(each, i + k) for k, each in enumerate(found))
        given = arrays(i)
        if how == 1:
            given = session.buffer()
            for place, array in zip(given, arrays(i), strict=True):
                place[...] = array
        return is_answer(session.infer(given), i)

    def story(n):
        chance, shared = random.Random(100 * seed + n), 0
        for _ in range(8):
            # There is one for each of those that begin now.
            service.until(lambda: len(regions_of(service)) < REGIONS - 6, "some are let go of")
            with Session(service.url("unix"), "m", timeout_s=LONG) as session:
                shared += session.shares_memory
                for _ in range(chance.randrange(1, 12)):
                    assert ask(session, chance)
                if chance.random() < 0.5:  # as if it were killed, with requests on their way
                    late = [session._call(arrays(k), DEFAULT, None) for k in (1, 2)]
                    session._exchange.submit(late)
                    session._exchange.socket.shutdown(socket.SHUT_RDWR)
        return shared

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(story, range(6))) == 6 * 8  # numbers have been used again
    gc.collect()
    gone(service)


CLIENT = """
import sys
import numpy as np
from shunter.nic_frontend.client import Session
session = Session(sys.argv[1], "m", timeout_s=600)
assert session.shares_memory
buffer = session.buffer()
buffer[0][:] = np.arange(1024)
buffer[0][:4].view(np.uint32)[:] = 77
session.infer(buffer)
"""


def test_a_client_that_is_killed_is_read_to_the_end_and_leaves_nothing(site, nic):
    unix = str(site.folder / "nic.stream")
    site.serve(unix=unix)
    site.worker(batch=1)
    before = site.look()["memories"]
    site.hold()
    client = subprocess.Popen([sys.executable, "-c", CLIENT, f"unix://{unix}"])
    nic.until(lambda: site.executions()[77] == 1, "its request runs")
    other = site.client("unix", want=WANT_SHARED_MEMORY)
    number = other.ask_shared()
    client.send_signal(signal.SIGKILL)
    client.wait()
    assert site.look()["memories"] != before
    site.go_on()
    assert other.answers(1) == {number: other.expected(number)}
    other.socket.close()
    nic.until(lambda: site.look()["memories"] == before, "its memory is let go of")
    again = site.client("unix", want=WANT_SHARED_MEMORY)
    assert again.answers_to([again.ask_shared()]) == {1: again.expected(1)}
    assert site.executions() == {77: 1, 1: 2}


def test_a_worker_that_is_killed_takes_no_memory_with_it(site, nic):
    site.serve(unix=str(site.folder / "nic.stream"))
    first = site.worker(batch=1)
    client = site.client("unix", want=WANT_SHARED_MEMORY)
    site.hold()
    once = client.ask_shared(name=50)
    nic.until(lambda: site.executions()[50] == 1, "it runs")
    twice = client.ask_shared(name=51, add=Flags.IDEMPOTENT)
    site.kill(first)
    site.go_on()
    site.worker(batch=1)
    found = client.answers(2)
    assert found == {once: WireStatus.WORKER_DIED, twice: client.expected(51)}


# ---- clients that mean no good

EDGE = 64 * 1024
WRONG = [
    {"offset": EDGE - 1023},
    {"offset": EDGE},
    {"offset": 1 << 31},
    {"offset": 0xFFFFFFFF},
    {"count": 4},
    {"count": 0},
    {"seq": 1},
    {"tensor": 1},
    {"total": 1024},
    {"length": 256, "payload": b"\xee" * 256},
]


def test_what_leads_out_of_the_memory_is_refused(abused_site):
    site = abused_site
    site.serve(unix=str(site.folder / "nic.stream"))
    site.worker()
    client = site.client("unix", want=WANT_SHARED_MEMORY)
    assert client.opened.window * client.each == EDGE
    for wrong in WRONG:
        number = client.ask_shared(**wrong)
        assert client.answers_to([number]) == {number: WireStatus.BAD_REQUEST}, wrong
        client.acknowledge(number + 1)
    last = client.ask_shared(offset=EDGE - 1024, name=9)
    [[answer]] = client.answers_to([last]).values()
    assert len(answer) == 512
    plain = site.client("unix")
    assert plain.shared is None
    header = plain.header(MessageType.REQ, 1, count=1, length=0, total=0, flags=Flags.LAST)
    plain.put(header.pack(plain.key))
    assert plain.answers_to([1]) == {1: WireStatus.BAD_REQUEST}


def test_the_memory_cannot_be_cut_off(site):
    site.serve(unix=str(site.folder / "nic.stream"))
    site.worker()
    client = site.client("unix", want=WANT_SHARED_MEMORY)
    for size in (0, EDGE - 1, EDGE + 1):
        with pytest.raises(PermissionError):
            os.ftruncate(client.memory, size)
    assert client.answers_to([client.ask_shared()]) == {1: client.expected(1)}
