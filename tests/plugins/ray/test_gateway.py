"""The gateway's application, with machines that do what a test says."""

import asyncio
import json

import pytest

pytest.importorskip("aiohttp")

from shunter.allocator.cluster.load import Fit, ModelState
from shunter.plugins.ray.gateway.app import WHOLE_BYTES, App
from shunter.plugins.ray.gateway.dispatch import Dispatch
from shunter.plugins.ray.records.directory import Directory, Entry, Report
from shunter.plugins.ray.records.loads import Work
from shunter.plugins.ray.records.settings import GatewaySettings

PATIENCE_S = 60
GOOD = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nx-of: machine\r\n\r\nok"
FULL = json.dumps({"code": 503, "type": "ServiceUnavailableException"}).encode()


def answer(status, body, *more):
    head = [f"HTTP/1.1 {status} Words", f"content-length: {len(body)}", *more]
    return "\r\n".join([*head, "", ""]).encode() + body


class Machine:
    """A server whose connections each get the bytes that it is told, and then end."""

    def __init__(self, name, said):
        self.name, self.said, self.pause_s = name, said, 0.0
        self.seen, self.asked, self.left = [], asyncio.Event(), asyncio.Event()

    async def start(self):
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]
        if self.said is None:  # nobody listens there
            self.server.close()

    async def _serve(self, reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        self.seen.append(head.decode())
        self.asked.set()
        if self.said == "hold":
            await reader.read()  # until the other side leaves
            self.left.set()
        else:
            first, *more = self.said if isinstance(self.said, list) else [self.said]
            writer.write(first)
            for part in more:
                await asyncio.sleep(self.pause_s)
                writer.write(part)
        writer.close()

    def entry(self, state="serving", pid=1):
        work = Work("m", "1", True, True, ModelState(Fit(0.01, 0.0)), 1, 0, 0, False, (0, 0))
        works = (work,) if state == "serving" else ()
        report = Report(state, f"http://127.0.0.1:{self.port}", works, pid=pid)
        return Entry(self.name, self.name, report)


class Gateway:
    """The application, open, and what it answered."""

    def __init__(self, machines, **settings):
        self.machines = machines
        self.app = App(Dispatch(), GatewaySettings(**settings))
        self.number = 0
        self.gone = asyncio.Event()

    async def __aenter__(self):
        for each in self.machines:
            await each.start()
        self.learn(*(each.entry() for each in self.machines))
        self._events, self._told = asyncio.Queue(), asyncio.Queue()
        self._living = asyncio.create_task(
            self.app({"type": "lifespan"}, self._events.get, self._told.put)
        )
        await self._events.put({"type": "lifespan.startup"})
        await self._told.get()
        return self

    async def __aexit__(self, *_):
        await self._events.put({"type": "lifespan.shutdown"})
        await self._living
        for each in self.machines:
            each.server.close()

    def learn(self, *entries):
        self.number += 1
        self.app.soon(Directory(self.number, {each.name: each for each in entries}))

    async def ask(self, path="/predictions/m", body=b"x", method="POST", **headers):
        """Status, headers and body; an answer that is cut ends with None."""
        sent, received = [], [{"type": "http.request", "body": body, "more_body": False}]

        async def receive():
            if received:
                return received.pop()
            await self.gone.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            sent.append(message)

        pairs = [(k.replace("_", "-").encode(), v.encode()) for k, v in headers.items()]
        scope = {"type": "http", "method": method, "raw_path": path.encode()}
        scope |= {"query_string": b"", "headers": pairs}
        try:
            await self.app(scope, receive, send)
        except ConnectionError:
            sent.append(None)
        heads = [each for each in sent if each and each["type"] == "http.response.start"]
        assert len(heads) <= 1
        self.sent = sent
        if not heads:
            return None, {}, b""
        parts = [each["body"] for each in sent if each and each["type"] == "http.response.body"]
        headers = {k.decode(): v.decode() for k, v in heads[0]["headers"]}
        return heads[0]["status"], headers, b"".join(parts)


def check(*said, **settings):
    """Runs a test's coroutine with a gateway over machines that say so."""

    def run(test):
        async def whole():
            machines = [Machine(f"m{at}", each) for at, each in enumerate(said)]
            async with asyncio.timeout(PATIENCE_S), Gateway(machines, **settings) as gateway:
                await test(gateway, *machines)

        asyncio.run(whole())

    return run


def test_an_answer_is_passed_on():
    @check(GOOD)
    async def _(gateway, machine):
        status, headers, body = await gateway.ask(x_shunter_deadline_ms="5000", connection="close")
        assert (status, headers["x-of"], body) == (200, "machine", b"ok")
        lines = machine.seen[0].lower().split("\r\n")
        assert lines[0] == "post /predictions/m http/1.1"
        [left] = [each for each in lines if each.startswith("x-shunter-deadline-ms")]
        assert 0 < float(left.split(":")[1]) < 5000
        assert "connection: close" not in lines


@pytest.mark.parametrize("bad", [None, answer(503, FULL)])
def test_what_did_not_run_is_tried_elsewhere_even_if_it_must_not_run_twice(bad):
    @check(bad, bad, GOOD)
    async def _(gateway, *machines):
        for _ in range(5):
            assert (await gateway.ask(x_shunter_idempotent="false"))[0] == 200


def test_a_503_of_a_handler_is_an_answer_where_it_must_not_run_twice():
    @check(answer(503, b"of the handler"))
    async def _(gateway, machine):
        assert await gateway.ask(x_shunter_idempotent="false") == (
            503,
            {"content-length": "14"},
            b"of the handler",
        )
        assert len(machine.seen) == 1


CUT = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf"


@pytest.mark.parametrize("lost", [b"", b"HTTP/1.1 200 OK\r\n", CUT])
def test_what_was_lost_runs_again_if_it_may(lost):
    @check(lost, GOOD)
    async def _(gateway, one, other):
        for _ in range(5):
            assert (await gateway.ask())[::2] == (200, b"ok")

    for method in ("POST", "PUT", "GET"):

        @check(lost, GOOD)
        async def _(gateway, machine, other, method=method):
            gateway.learn(machine.entry())
            asking = gateway.ask(method=method, x_shunter_idempotent="false")
            status, _, body = await asking
            assert (status, json.loads(body)["type"]) == (502, "MachineLost")
            assert len(machine.seen) == 1 and not other.seen


def test_a_part_that_was_passed_on_is_not_sent_again():
    begun = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\nhalf" % (WHOLE_BYTES + 1)

    @check(begun)
    async def _(gateway, machine):
        assert (await gateway.ask())[::2] == (200, b"half")
        assert gateway.sent[-1] is None
        assert len(machine.seen) == 1


def test_parts_may_take_longer_than_the_first_of_them():
    begun = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (WHOLE_BYTES + 1)

    @check([begun + b"x" * WHOLE_BYTES, b"y"], longest_s=1)
    async def _(gateway, machine):
        machine.pause_s = 1.5
        status, _, body = await gateway.ask()
        assert (status, len(body), body[-1:]) == (200, WHOLE_BYTES + 1, b"y")
        assert gateway.sent[-1] is not None


def test_what_a_machine_held_that_is_gone_runs_again():
    @check("hold", GOOD)
    async def _(gateway, one, other):
        gateway.learn(one.entry())
        asking = asyncio.create_task(gateway.ask())
        await one.asked.wait()
        gateway.learn(one.entry("lost", pid=0), other.entry())
        assert (await asking)[::2] == (200, b"ok")
        await one.left.wait()


def test_a_client_that_leaves_takes_its_request_along():
    @check("hold")
    async def _(gateway, machine):
        asking = asyncio.create_task(gateway.ask())
        await machine.asked.wait()
        gateway.gone.set()
        assert (await asking)[0] is None
        await machine.left.wait()
        assert gateway.app.counted()["counters"] == {"abandoned": 1}


def test_a_machine_that_never_answers_is_given_up():
    @check("hold", longest_s=1)
    async def _(gateway, machine):
        assert (await gateway.ask())[0] == 504


@pytest.mark.parametrize(
    ("path", "status"),
    [("/predictions/other", 404), ("/models", 404), ("/ping", 200), ("/v2/health/ready", 200)],
)
def test_what_is_the_gateways_own(path, status):
    @check(GOOD)
    async def _(gateway, machine):
        assert (await gateway.ask(path))[0] == status
        assert not machine.seen


def test_what_the_only_machine_lost_is_said_to_be_lost():
    @check(b"")
    async def _(gateway, machine):
        status, _, body = await gateway.ask()
        assert (status, json.loads(body)["type"]) == (502, "MachineLost")


def test_without_a_machine():
    @check()
    async def _(gateway):
        assert (await gateway.ask())[0] == 503
        assert (await gateway.ask("/ping"))[0] == 503
        assert (await gateway.ask("/v2/health/live"))[0] == 200


def test_when_no_machine_takes_it_the_last_one_that_refused_is_heard():
    @check(answer(503, FULL, "retry-after: 7"))
    async def _(gateway, machine):
        status, headers, body = await gateway.ask()
        assert (status, headers["retry-after"], body) == (503, "7", FULL)


def test_a_request_that_is_too_large():
    @check(GOOD, max_body_mb=1)
    async def _(gateway, machine):
        assert (await gateway.ask(body=bytes((1 << 20) + 1)))[0] == 413
        assert not machine.seen
