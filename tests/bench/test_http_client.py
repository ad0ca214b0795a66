"""The load generator's HTTP client: where answers end, and that each exchange ends once."""

import asyncio
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 503 Busy\r\ntransfer-encoding: chunked\r\n\r\n"
    b"4;x=y\r\nwiki\r\nA\r\n0123456789\r\n0\r\nTrailer: 1\r\n\r\n"
)
EMPTY = b"HTTP/1.1 204 No Content\r\nX: y\r\n\r\n"
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n" + PLAIN
CLOSING = b"HTTP/1.1 200 OK\r\nConnection: Close\r\ncontent-length:0\r\n\r\n"
OLD = b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok"
ENDLESS = b"HTTP/1.1 200 OK\r\n\r\nuntil the end"


@pytest.fixture(scope="module")
def http(script):
    return script("http_client")


@pytest.fixture(scope="module")
def http_parser(script):
    return script("http_parser")


@pytest.fixture(scope="module")
def timer(script):
    return script("precise_timer")


@pytest.fixture(scope="module")
def open_loop(script):
    return script("open_loop")


@given(data=st.data())
@pytest.mark.parametrize(
    ("answer", "status", "keep"),
    [
        (PLAIN, 200, True),
        (CHUNKED, 503, True),
        (EMPTY, 204, True),
        (INTERIM, 200, True),
        (CLOSING, 200, False),
        (OLD, 200, False),
    ],
)
def test_an_answer_ends_where_it_ends_however_it_is_cut(http_parser, answer, status, keep, data):
    cuts = sorted(data.draw(st.sets(st.integers(1, len(answer) - 1))))
    parts = [answer[a:b] for a, b in zip([0, *cuts], [*cuts, len(answer)], strict=True)]
    parser = http_parser.Parser()
    assert [parser.feed(part) for part in parts] == [False] * (len(parts) - 1) + [True]
    assert (parser.status, parser.keep) == (status, keep)
    parser.reset()
    assert parser.feed(PLAIN)


@pytest.mark.parametrize("answer", [PLAIN, CHUNKED, EMPTY])
def test_more_than_was_asked_for_ends_the_connection(http_parser, answer):
    parser = http_parser.Parser()
    assert parser.feed(answer + b"HTTP")
    assert not parser.keep


def test_without_a_length_an_answer_ends_with_its_connection(http_parser):
    parser = http_parser.Parser()
    assert not parser.feed(ENDLESS)
    assert parser.closed()


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-x\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -3\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"x" * 70_000,
    ],
)
def test_what_is_no_http_is_refused(http_parser, answer):
    with pytest.raises(http_parser.Malformed):
        http_parser.Parser().feed(answer)


def test_a_line_break_cannot_be_smuggled_into_a_request(http):
    with pytest.raises(ValueError, match="line break"):
        http.prebuilt("h", 1, "/", b"", headers={"A": "b\r\nC: d"})


async def others_ended():
    """The server's side has seen the end of its connections."""
    while len(asyncio.all_tasks()) > 1:
        await asyncio.sleep(0.005)


async def exchanges(http, answer, count, *, limit=256, timeout_s=60.0, close=False):
    """Send ``count`` requests at once to a server that answers so; their exchanges in any order.

    ``answer`` None: no server listens. Bytes: sent to each request, then closed where ``close``.
    """
    connections = 0

    async def serve(reader, writer):
        nonlocal connections
        connections += 1
        while not close and await reader.read(65536):
            writer.write(answer)
        if close:
            await reader.read(65536)
            writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    if answer is None:
        server.close()
        await server.wait_closed()
    pool, ended = http.Pool("127.0.0.1", port, limit), []
    timeouts = http.Timeouts(timeout_s)
    request = http.prebuilt("127.0.0.1", port, "/", b"{}")
    for _ in range(count):
        exchange = http.Exchange(request, time.monotonic(), ended.append)
        timeouts.watch(exchange, pool)
        pool.submit(exchange)
    while len(ended) < count:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    timeouts.close()
    pool.close()
    server.close()
    await others_ended()
    assert len({id(exchange) for exchange in ended}) == len(ended) == count
    return ended, connections


@pytest.mark.parametrize(
    ("answer", "close", "status"),
    [
        (PLAIN, False, 200),
        (CHUNKED, False, 503),
        (CLOSING, True, 200),
        (ENDLESS, True, 200),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhalf", True, -2),
        (b"HTTP/1.1 200 OK\r\nContent-Le", True, -2),
        (b"", True, -2),
        (b"nonsense\r\n\r\n", False, -2),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhalf", False, -1),
        (None, False, -3),
    ],
)
def test_each_exchange_ends_exactly_once(http, answer, close, status):
    timeout_s = 0.5 if status == -1 else 60.0
    ended, _ = asyncio.run(exchanges(http, answer, 40, limit=8, timeout_s=timeout_s, close=close))
    assert [exchange.status for exchange in ended] == [status] * 40


def test_no_more_connections_than_allowed_and_they_are_kept(http):
    ended, connections = asyncio.run(exchanges(http, PLAIN, 500, limit=16))
    assert connections <= 16
    assert all(exchange.sent >= exchange.taken >= exchange.due for exchange in ended)


def test_a_timeout_ends_those_that_wait_and_frees_the_way_for_later_ones(http):
    async def load():
        connections = 0

        async def serve(reader, writer):
            nonlocal connections
            connections += 1
            answers = connections > 1
            while await reader.read(65536):
                writer.write(PLAIN if answers else PLAIN[:-1])
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        pool, timeouts = http.Pool("127.0.0.1", port, 1), http.Timeouts(1)
        ended, request = [], http.prebuilt("127.0.0.1", port, "/", b"{}")
        for before in range(3):
            while len(ended) < before and before == 2:
                await asyncio.sleep(0.01)
            # The others have time left when the first has none, however late that is noticed.
            due = time.monotonic() + (60 if before else 0)
            exchange = http.Exchange(request, due, ended.append)
            timeouts.watch(exchange, pool)
            pool.submit(exchange)
        while len(ended) < 3:
            await asyncio.sleep(0.01)
        timeouts.close()
        pool.close()
        server.close()
        await others_ended()
        return ended

    first, second, third = asyncio.run(load())
    assert [first.status, second.status, third.status] == [-1, 200, 200]
    assert first.end - first.due >= 1
    assert second.due < third.due and first.end < third.due
    assert second.end >= first.end, "the wait for the connection counts"


def test_requests_leave_when_they_are_due(timer):
    async def lateness():
        start, late = time.monotonic() + 0.05, []
        times = [start + i * 0.02 for i in range(100)]
        await timer.send_all(times, lambda i: late.append(time.monotonic() - times[i]))
        return late

    late = asyncio.run(lateness())
    assert len(late) == 100
    assert min(late) >= 0
    assert sorted(late)[50] < 0.5, "half of the time that all of them take would be 1 s"


def test_an_error_while_sending_ends_the_run(timer):
    def fail(index):
        raise RuntimeError(f"at {index}")

    with pytest.raises(RuntimeError, match="at 0"):
        asyncio.run(timer.send_all([time.monotonic() + 0.01], fail))


def test_the_plain_client_counts_every_request(open_loop):
    async def load():
        async def serve(reader, writer):
            while await reader.read(65536):
                writer.write(PLAIN)
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        client = open_loop.Client("127.0.0.1", port, "/predictions/m", b"{}")
        first = await client.run(300, 0.3, seed=1, timeout_s=5)
        second = await client.run(300, 0.3, seed=1, timeout_s=5)
        client.close()
        server.close()
        await others_ended()
        return first, second

    first, second = asyncio.run(load())
    assert first.sent == first.statuses["200"] == len(first.latencies_ms) == len(first.late_ms)
    assert 50 < first.sent < 140
    assert second.sent == pytest.approx(first.sent, abs=2), "the seed decides"
