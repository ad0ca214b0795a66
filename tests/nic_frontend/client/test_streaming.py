"""Answers in parts: from a handler that yields to a client that iterates, by every way."""

import asyncio
import contextlib
import gc
import os
import random
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from shunter.handlers.queue import loaded_model
from shunter.nic_frontend.client import (
    AsyncClient,
    BadRequestError,
    Client,
    ServerError,
    Session,
    TooSlowError,
)

KEY = bytes(range(32))
LONG = 30
TENSORS = {
    "inputs": [{"name": "ask", "dtype": "int64", "shape": [-1]}],
    "outputs": [{"name": "part", "dtype": "int64", "shape": [-1]}],
    "streamed": True,
    "answer_bytes": 65536,
}


class Counts:
    """Of ``[n, size, seed]`` the answer has n parts of that many numbers."""

    def __init__(self):
        self.gate, self.steps, self.ended = threading.Event(), 0, []
        self.over = False
        self.gate.set()

    def infer(self, batch):
        asked = [ask.tolist()[:3] for ask in batch.split(batch["ask"], "ask")]
        if any(seed == 666 for *_, seed in asked):
            yield [None if seed == 666 else part(1, size, seed) for _, size, seed in asked]
            raise ValueError("this one fails")
        try:
            for number in range(1, max(n for n, *_ in asked) + 1):
                for i, (n, _, seed) in enumerate(asked):
                    if seed == 77 and number >= n:
                        batch.end(i)
                self.steps += 1
                assert self.gate.wait(LONG)
                yield [
                    part(number, size, seed) if number <= n else None for n, size, seed in asked
                ]
        finally:
            self.ended.append(len(asked))


class Silent(Counts):
    """Never has a part for anybody."""

    def infer(self, batch):
        try:
            while not self.over:
                time.sleep(0.001)
                self.steps += 1
                yield [None] * len(batch)
        finally:
            self.ended.append(len(batch))


def part(number, size, seed):
    import torch

    return torch.arange(size) * number + seed


class Worker:
    """A worker as a model server's process would run it."""

    def __init__(self, path, handler, batch=1, model="s", tensors=TENSORS, environ=None):
        self.handler = handler
        loaded = loaded_model.LoadedModel(model, {"tensors": tensors}, batch, handler)
        link = loaded_model.link_of(path, loaded, environ or {})
        self._server, self._other = socket.socketpair()
        self._thread = threading.Thread(target=link.run, args=(self._server, lambda: True))
        self._thread.start()

    def close(self):
        self.handler.gate.set()
        self.handler.over = True
        self._other.close()
        self._thread.join(30)
        self._server.close()  # also when it fails: another test would be blamed for that
        assert not self._thread.is_alive()


@pytest.fixture
def make_worker():
    made = []

    def make(service, batch=1, handler=None, **more):
        handler = handler or Counts()
        made.append(Worker(service._folder / "nic.sock", handler, batch, **more))
        service.wait_for(more.get("model", "s"))
        return made[-1].handler

    yield make
    for each in made:
        each.close()


def asks(n, size=3, seed=7):
    return np.array([n, size, seed], np.int64)


def wanted(n, size=3, seed=7):
    return [(np.arange(size) * number + seed).tolist() for number in range(1, n + 1)]


def until(condition, seconds=LONG):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


def free_entries(service):
    [function] = service.front_end.functions.all()
    return service.front_end.path.free_entries(function.id)


WAYS = {
    "udp": {},
    "tcp": {},
    "unix": {},
    "udp-key": {"key": KEY},
    "udp-crc": {"crc": True},
    "udp-encrypted": {"encrypt": True, "key": KEY},
    "tcp-encrypted": {"encrypt": True, "key": KEY},
}


@pytest.mark.parametrize("way", WAYS)
def test_parts_come_in_order_and_once(make_service, make_worker, way):
    service, how = make_service(key=WAYS[way].get("key")), WAYS[way]
    make_worker(service)
    url = service.url(way.split("-")[0])
    with Client(url, timeout_s=LONG, **how) as client:
        for n, size in [(1, 3), (0, 1), (200, 5), (20, 3000), (8, 0)]:
            found = [part.tolist() for part in client.stream("s", asks(n, size))]
            assert found == wanted(n, size)

    async def main():
        async with AsyncClient(url, timeout_s=LONG, **how) as client:

            async def one(n, seed):
                found = [p.tolist() async for p in client.stream("s", asks(n, 4, seed))]
                assert found == wanted(n, 4, seed)

            await asyncio.gather(*(one(10 * seed, seed) for seed in range(8)))

    asyncio.run(main())
    until(lambda: free_entries(service) >= 1)


def test_requests_of_a_batch_have_parts_of_their_own(make_service, make_worker):
    service = make_service()
    handler = make_worker(service, batch=8)
    handler.gate.clear()

    async def main():
        async with AsyncClient(service.url(), timeout_s=LONG) as client:

            async def one(n, seed):
                return [p.tolist() async for p in client.stream("s", asks(n, 4, seed))]

            first = asyncio.create_task(one(3, 0))
            await asyncio.to_thread(until, lambda: handler.steps == 1)
            others = [asyncio.create_task(one(5 * seed, seed)) for seed in range(1, 7)]
            function = service.front_end.functions.all()[0].id
            waits = service.front_end.path.waiting
            await asyncio.to_thread(until, lambda: waits(function) == 6)
            handler.gate.set()
            assert await first == wanted(3, 4, 0)
            for seed, task in enumerate(others, 1):
                assert await task == wanted(5 * seed, 4, seed)

    asyncio.run(main())
    assert max(handler.ended) > 1


def test_a_request_of_a_batch_can_be_over_before_the_others(make_service, make_worker):
    service = make_service()
    handler = make_worker(service, batch=4)
    handler.gate.clear()

    async def main():
        async with AsyncClient(service.url(), timeout_s=LONG) as client:
            over = asyncio.Event()

            async def short(n):
                return [p.tolist() async for p in client.stream("s", asks(n, 4, 77))]

            async def long():
                async with contextlib.aclosing(client.stream("s", asks(10**9, 4, 1))) as parts:
                    async for _ in parts:
                        if over.is_set():
                            return

            first = asyncio.create_task(short(1))
            await asyncio.to_thread(until, lambda: handler.steps == 1)
            others = [asyncio.create_task(short(n)) for n in (1, 20)]
            going_on = asyncio.create_task(long())
            function = service.front_end.functions.all()[0].id
            waits = service.front_end.path.waiting
            await asyncio.to_thread(until, lambda: waits(function) == 3)
            handler.gate.set()
            assert await first == wanted(1, 4, 77)
            assert await others[0] == wanted(1, 4, 77)
            assert await others[1] == wanted(20, 4, 77)
            assert not going_on.done()
            over.set()
            await going_on

    asyncio.run(main())
    until(lambda: 3 in handler.ended)


def test_who_closes_the_iterator_ends_the_handler(make_service, make_worker):
    service = make_service()
    handler = make_worker(service)
    with Session(service.url(), "s", timeout_s=LONG) as session:
        parts = session.stream([asks(10**9)])
        assert [next(parts)[0].tolist() for _ in range(3)] == wanted(3)
        parts.close()
        until(lambda: handler.ended)
        for _ in session.stream([asks(10**9)]):
            break
        gc.collect()
        until(lambda: len(handler.ended) == 2)
        assert [p[0].tolist() for p in session.stream([asks(4)])] == wanted(4)


def test_of_who_has_no_part_yet_it_is_known_that_nobody_waits_for_him(make_service, make_worker):
    service = make_service()
    handler = make_worker(service, handler=Silent())

    async def main():
        async with AsyncClient(service.url(), timeout_s=LONG) as client:
            waits = asyncio.create_task(anext(client.stream("s", asks(1))))
            await asyncio.to_thread(until, lambda: handler.steps)
            waits.cancel()
            await asyncio.gather(waits, return_exceptions=True)
            await asyncio.to_thread(until, lambda: handler.ended)

    asyncio.run(main())


def test_a_session_that_ends_in_the_midst_ends_the_handler(make_service, make_worker):
    service = make_service()
    handler = make_worker(service)
    session = Session(service.url("tcp"), "s", timeout_s=LONG)
    parts = session.stream([asks(10**9)])
    next(parts)
    session._exchange.socket.shutdown(socket.SHUT_RDWR)
    until(lambda: handler.ended)
    with contextlib.suppress(Exception):
        session.close()


def test_a_handler_goes_no_further_than_its_clients_have_asked(make_service, make_worker):
    service = make_service()
    handler = make_worker(service)
    with Session(service.url(), "s", timeout_s=LONG) as session:
        parts = session.stream([asks(100)], ahead=3)
        assert next(parts)[0].tolist() == wanted(1)[0]
        until(lambda: handler.steps >= 4)
        time.sleep(0.05)
        assert handler.steps <= 6
        assert [p[0].tolist() for p in parts] == wanted(100)[1:]


def test_many_clients_beside_one_that_does_not_read(make_service, make_worker):
    service = make_service()
    make_worker(service)
    make_worker(service)  # another worker of the same model
    with Session(service.url(), "s", timeout_s=LONG) as slow:
        held = slow.stream([asks(10**6)])
        next(held)

        async def main():
            async with AsyncClient(service.url(), timeout_s=LONG) as client:

                async def one(seed):
                    return [p.tolist() async for p in client.stream("s", asks(20, 4, seed))]

                found = await asyncio.gather(*(one(seed) for seed in range(12)))
                assert found == [wanted(20, 4, seed) for seed in range(12)]

        asyncio.run(main())
        assert next(held)[0].tolist() == wanted(2)[1]
        held.close()


def test_one_that_does_not_read_holds_nobody_of_its_batch_up(make_service, make_worker):
    service = make_service()
    limits = {"backlog_bytes": 20_000, "backlog_ms": 1000}
    handler = make_worker(service, batch=8, tensors={**TENSORS, **limits})
    handler.gate.clear()

    async def main():
        async with contextlib.AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(AsyncClient(service.url(), timeout_s=LONG))
                for _ in range(8)
            ]

            async def one(client, n):
                return [p.tolist() async for p in client.stream("s", asks(n, 4, 77))]

            first = asyncio.create_task(one(clients[0], 1))
            await asyncio.to_thread(until, lambda: handler.steps == 1)
            slow = clients[0].stream("s", asks(10**9, 4, 8))
            begun = asyncio.create_task(anext(slow))
            others = [asyncio.create_task(one(each, 300)) for each in clients[1:]]
            function = service.front_end.functions.all()[0].id
            waits = service.front_end.path.waiting
            await asyncio.to_thread(until, lambda: waits(function) == 8)
            handler.gate.set()
            assert await first == wanted(1, 4, 77)
            for task in others:
                assert await task == wanted(300, 4, 77)
            await asyncio.to_thread(until, lambda: 8 in handler.ended)
            found = [(await begun).tolist()]
            with pytest.raises(TooSlowError, match="too slowly"):
                async for part in slow:
                    found.append(part.tolist())
            assert found == wanted(len(found), 4, 8)
            assert await one(clients[0], 3) == wanted(3, 4, 77)  # the worker serves on

    asyncio.run(main())


def test_a_handler_that_fails_fails_after_the_parts_that_came(make_service, make_worker):
    service = make_service()
    make_worker(service)
    with Client(service.url(), timeout_s=LONG) as client:
        with pytest.raises(ServerError, match="handler failed"):
            list(client.stream("s", asks(3, 1, 666)))
        assert len(list(client.stream("s", asks(3)))) == 3


def test_infer_and_stream_are_of_different_models(make_service, make_worker):
    service = make_service()
    make_worker(service)
    whole = {**TENSORS, "streamed": False}
    make_worker(service, model="whole", tensors=whole)
    with Client(service.url(), timeout_s=LONG) as client:
        with pytest.raises(BadRequestError, match="ask by stream"):
            client.infer("s", asks(3))
        with pytest.raises(BadRequestError, match="ask by infer"):
            next(client.stream("whole", asks(3)))


def test_a_front_end_that_goes_in_the_midst_is_an_error_and_no_wrong_part(
    make_service, make_worker
):
    service = make_service()
    handler = make_worker(service)
    with Session(service.url(), "s", timeout_s=LONG) as session:
        parts, found = session.stream([asks(10**9)]), []
        found.append(next(parts)[0].tolist())
        service.stop()
        service.start()
        with pytest.raises(Exception, match=r"session|server"):
            found += [each[0].tolist() for each in parts]
        assert found == wanted(len(found))
        until(lambda: handler.ended)
        service.wait_for("s")
        assert [p[0].tolist() for p in session.stream([asks(4)])] == wanted(4)


# ---- a worker that is killed


def _work(path):
    """A worker in a process of its own; it ends with its input."""
    worker = Worker(Path(path), Counts())
    sys.stdin.read()
    worker.close()


@pytest.fixture
def killable(make_service):
    service = make_service()
    command = [sys.executable, __file__, str(service._folder / "nic.sock")]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    service.wait_for("s")
    yield service, process
    with contextlib.suppress(OSError):
        process.stdin.close()
    process.wait(LONG)


def test_a_worker_that_dies_in_the_midst_is_an_error_and_no_wrong_part(killable, make_worker):
    service, process = killable
    found, failed = {}, []

    async def main():
        async with AsyncClient(service.url(), timeout_s=LONG) as client:

            async def one(seed):
                found[seed] = []
                try:
                    async for each in client.stream("s", asks(10**9, 4, seed)):
                        found[seed].append(each.tolist())
                        if len(found[seed]) == 100:
                            os.kill(process.pid, signal.SIGKILL)
                except ServerError as error:
                    failed.append(error.status)

            await asyncio.gather(*(one(seed) for seed in range(4)))

    asyncio.run(main())
    assert len(failed) == 4 and 502 in failed and set(failed) <= {502, 521}
    assert max(map(len, found.values())) >= 100
    assert all(parts == wanted(len(parts), 4, seed) for seed, parts in found.items())
    make_worker(service)
    with Client(service.url(), timeout_s=LONG) as client:
        assert [part.tolist() for part in client.stream("s", asks(9))] == wanted(9)


# ---- a way that loses


class Lossy:
    """Datagrams to and from a server, of which some are lost, doubled or overtaken."""

    def __init__(self, port, seed=5, lost=0.05):
        self._random, self._lost, self._over = random.Random(seed), lost, False
        self._front = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._back = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._front.bind(("127.0.0.1", 0))
        self._back.connect(("127.0.0.1", port))
        self.port = self._front.getsockname()[1]
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        client, held = None, []
        while not self._over:
            for each in select.select([self._front, self._back], [], [], 0.01)[0]:
                data, peer = each.recvfrom(65536)
                client = peer if each is self._front else client
                if self._random.random() >= self._lost:
                    held += [(each, data)] * (2 if self._random.random() < self._lost else 1)
            if self._random.random() < 2 * self._lost:
                self._random.shuffle(held)
            for each, data in held:
                if each is self._front:
                    self._back.send(data)
                elif client is not None:
                    self._front.sendto(data, client)
            held.clear()

    def close(self):
        self._over = True
        self._thread.join(30)
        self._front.close()
        self._back.close()


@pytest.mark.parametrize("how", [{}, {"encrypt": True, "key": KEY}], ids=["open", "encrypted"])
def test_nothing_is_lost_doubled_or_out_of_order_on_a_way_that_loses(
    make_service, make_worker, how
):
    service = make_service(key=how.get("key"))
    make_worker(service, batch=4)
    way = Lossy(service.front_end.port)

    async def main():
        async with AsyncClient(f"udp://127.0.0.1:{way.port}", timeout_s=LONG, **how) as client:

            async def one(seed):
                found = [p.tolist() async for p in client.stream("s", asks(60, 500, seed))]
                assert found == wanted(60, 500, seed)

            await asyncio.gather(*(one(seed) for seed in range(4)))

    try:
        asyncio.run(main())
    finally:
        way.close()


if __name__ == "__main__":
    _work(sys.argv[1])
