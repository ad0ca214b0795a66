"""Streams: slow readers, silence, and rubbish."""

import contextlib
import socket
import struct
import time

import pytest

from shunter.batching.queue import attach
from shunter.nic_frontend import build
from shunter.nic_frontend.wire.header import Header
from shunter.nic_frontend.wire.hello import Hello
from shunter.nic_frontend.wire.layout import Flags, MessageType, WireStatus

BIG = [("b", "uint8", [1 << 18])]
"""An answer of 256 KB."""
BUFFERS = 64 << 20
"""More than the kernel keeps of a stream."""
MOST_OUT, LATE_S = 3 << 19, 4
"""Of front ends that keep little."""


@pytest.fixture(params=["tcp", "unix"])
def kind(request):
    return request.param


@pytest.fixture
def served(site):
    """A front end that serves streams of both kinds, with a worker."""
    return serve(site)


def serve(site):
    site.serve(unix=str(site.folder / "nic.stream"), queue_bytes=8 * (1024 + (1 << 18)))
    site.worker(outputs=BIG)
    return site


def answered_or_left(served, count):
    look = served.look()
    return look["stats"]["answered"] >= count or not look["sessions"]


def test_a_client_that_acknowledges_and_never_reads_is_left(served, nic, kind):
    client = served.client(kind, window=4, segment=60_000)
    before = served.look()["rss_kb"]
    client.socket.settimeout(20)
    asked = 0
    with contextlib.suppress(ConnectionError):
        while True:
            number = client.ask(asked + 1)
            asked += 1
            nic.until(lambda count=asked: answered_or_left(served, count))
            client.acknowledge(number + 1)
            assert asked * (1 << 18) < 4 * BUFFERS, "it is never left"
    nic.until(lambda: served.look()["sessions"] == 0)
    assert served.look()["rss_kb"] < before + (32 << 10)
    honest = served.client(kind)
    number = honest.ask(200)
    assert honest.answers(1) == {number: honest.expected(200)}


def test_on_a_stream_no_answer_is_sent_again(served, kind):
    """Nothing is lost; who says that it is would only fill the server's memory."""
    client = served.client(kind, segment=60_000)
    client.ask(1)
    client.answers(1)
    client.ask(1, req_id=1, add=Flags.RETRANS | Flags.ACK_REQ)
    header, _ = client.get()
    assert (header.type, header.req_id) == (MessageType.SACK, 1)
    assert client.is_quiet(but=[MessageType.SACK])


@pytest.fixture(scope="module")
def small_processes(nic, tmp_path_factory):
    """Processes whose front ends keep little for streams, and not for long."""
    library = tmp_path_factory.mktemp("small") / "libshunter.so"
    more = [f"-DSHUNTER_MOST_OUT={MOST_OUT}u", f"-DSHUNTER_WRITE_LATE_NS={LATE_S}000000000u"]
    build.build(library, more=more)
    started = nic.Processes(str(library))
    yield started
    started.close()


def test_who_keeps_most_makes_room_for_the_others(make_site, small_processes, nic):
    served = serve(make_site(small_processes))
    hog = served.client("unix", window=7, segment=60_000)
    for name in range(1, 8):
        hog.ask(name)
    nic.until(lambda: served.look()["stats"]["answered"] == 7)
    modest = served.client("unix", window=4, segment=60_000)
    asked = {modest.ask(name): name for name in (20, 21, 22, 23)}
    nic.until(lambda: served.look()["sessions"] == 1)
    expected = {number: modest.expected(name) for number, name in asked.items()}
    assert modest.answers(4) == expected


def test_who_reads_nothing_for_long_is_left(make_site, small_processes, nic):
    served = serve(make_site(small_processes))
    reads, silent = (served.client("unix", window=4, segment=60_000) for _ in range(2))
    for name in (1, 2, 3):
        silent.ask(name)
    while served.look()["sessions"] == 2:  # and who reads what waits for it is not
        number = reads.ask(9)
        assert reads.answers(1) == {number: reads.expected(9)}
        reads.acknowledge(number + 1)
    number = reads.ask(9)
    assert reads.answers(1) == {number: reads.expected(9)}


def test_a_client_that_reads_late_gets_everything(served, nic, kind):
    client = served.client(kind, window=8, segment=60_000)
    rounds = [list(range(n, n + 8)) for n in (10, 20, 30)]
    for names in rounds:
        asked = {client.ask(name): name for name in names}
        wanted = (rounds.index(names) + 1) * 8
        nic.until(lambda wanted=wanted: served.look()["stats"]["answered"] == wanted)
        assert client.answers(8) == {i: client.expected(name) for i, name in asked.items()}
        client.acknowledge(max(asked) + 1)
        nic.until(lambda: served.function()["free"] == served.function()["entries"])


def test_who_stops_in_the_midst_is_closed_and_holds_nothing(site, nic):
    stopped, keepers = [], []
    site.serve(unix=str(site.folder / "nic.stream"))
    site.worker()
    keepers += [site.client(kind) for kind in ("tcp", "unix")]
    for kind in ("tcp", "unix"):
        silent, half_hello = site.stranger(kind), site.stranger(kind)
        half_hello.put(Header(type=MessageType.HELLO, length=Hello.BYTES).pack() + b"x")
        half_header, half_payload = site.client(kind), site.client(kind)
        half_header.put(half_header.header().pack()[:33])
        half_payload.put(half_payload.header().pack() + b"y" * 100)
        stopped += [c.socket for c in (silent, half_hello, half_header, half_payload)]
    worker = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    stopped.append(worker)
    worker.settimeout(nic.PATIENCE_S)
    worker.connect(str(site.folder / attach.NAME))
    nic.until(lambda: site.look()["stats"]["bytes_in"] >= 2 * (33 + 164))
    for each in stopped:
        with each, contextlib.suppress(ConnectionResetError):
            assert each.recv(1) == b""
    for keeper in keepers:  # between two messages a stream may be silent
        asked = keeper.ask(5)
        assert keeper.answers(1) == {asked: keeper.expected(5)}
        keeper.acknowledge(asked + 1)
    nic.until(lambda: site.look()["sessions"] == 2)
    nic.until(lambda: site.function()["free"] == site.function()["entries"])


def test_a_stream_that_closes_in_the_midst_of_a_payload_harms_nobody(served, nic, kind):
    client, other = served.client(kind), served.client(kind)
    client.segment(1, 0)
    client.put(client.header(seq=1).pack() + b"y" * 100)
    nic.until(lambda: served.look()["stats"]["bytes_in"] >= 64 + 256 + 164)
    assert served.function()["free"] == served.function()["entries"] - 1
    client.socket.close()
    nic.until(lambda: served.look()["sessions"] == 1)
    assert served.function()["free"] == served.function()["entries"]
    asked = other.ask(5)
    assert other.answers(1) == {asked: other.expected(5)}


@pytest.mark.parametrize("first", ["request", "acknowledgement"])
def test_a_message_without_a_payload_needs_no_room(site, nic, first):
    """Also where no stream has had any yet."""
    site.serve()
    puppet = site.puppet(inputs=[("a", "uint8", [0])])
    client = site.client("tcp")
    if first == "acknowledgement":
        client.acknowledge(1)
        nic.until(lambda: site.look()["stats"]["streams_in"] == 1)
    asked = client.ask()
    assert puppet.batch() == [0]
    puppet.done(WireStatus.OK)
    assert list(client.answers(1)) == [asked]


def test_a_payload_that_belongs_nowhere_is_skipped(abused_site, kind):
    client = serve(abused_site).client(kind)
    for changes in ({"length": 65_535}, {"length": 300}, {"func_id": 99}, {"offset": 1 << 20}):
        header = client.header(req_id=1, **changes)
        client.put(header.pack() + b"\xee" * header.length)
    assert client.get()[0].status == WireStatus.BAD_REQUEST
    client.next_id = 2
    asked = client.ask(5)
    assert client.answers(1) == {asked: client.expected(5)}


@pytest.mark.parametrize(
    "rubbish",
    [
        b"GET / HTTP/1.1\r\nHost: here\r\n" + b"x" * 4096,
        b"\0" * 4096,
        Header(type=MessageType.HELLO, length=Hello.BYTES).pack() + bytes(Hello.BYTES),
    ],
    ids=["http", "zeros", "hello"],
)
def test_rubbish_ends_the_stream(abused_site, nic, kind, rubbish):
    served = serve(abused_site)
    stranger, client = served.stranger(kind), served.client(kind)
    for each in (stranger, client):
        with contextlib.suppress(ConnectionError):
            each.put(rubbish)
            assert each.socket.recv(1) == b""
    nic.until(lambda: served.look()["sessions"] == 0)


def test_a_stream_does_not_speak_for_another(served, kind):
    one, other = served.client(kind), served.client(kind)
    one.session, one.func_id = other.session, other.func_id
    with contextlib.suppress(ConnectionError):
        one.ask(1)
        assert one.socket.recv(1) == b""
    asked = other.ask(2)
    assert other.answers(1) == {asked: other.expected(2)}
    assert served.executions() == {2: 1}


def test_half_a_payload_keeps_no_other_request_from_running(site, nic):
    """A worker dies while a payload is on its way: what runs again is not held up by that."""
    site.serve()
    first = site.puppet()
    client, slow = site.client(), site.client("tcp")
    asked = client.ask(7, add=Flags.IDEMPOTENT)
    assert first.names(first.batch()) == [7]
    before = site.look()["stats"]["bytes_in"]
    slow.put(slow.header().pack() + b"y" * 100)
    nic.until(lambda: site.look()["stats"]["bytes_in"] == before + 164)
    second = site.puppet()
    first.die()
    assert second.names(second.batch()) == [7]
    second.done(WireStatus.OK)
    assert list(client.answers(1)) == [asked]


BLOCKS = 4
"""Of a pool that is soon full: what comes is more than four fifths of a block."""
WIDE = [("a", "uint8", [60_000])]


@pytest.fixture
def full(site, nic, kind):
    """Streams of which some wait, because a pool is full of requests that nobody runs yet."""
    site.serve(
        unix=str(site.folder / "nic.stream"), landing_bytes=BLOCKS << 16, queue_bytes=64 * 60_512
    )
    site.one = site.puppet(inputs=WIDE)
    clients = [site.client(kind, segment=60_000) for _ in range(BLOCKS + 1)]
    for client in clients:
        client.socket.settimeout(20)
        client.ask()
    landed = lambda: site.look()["stats"]["placed_segments"]  # noqa: E731
    nic.until(lambda: landed() >= 1 and not site.look()["stats"]["landing_free"], "it is full")
    return clients


def test_a_stream_that_waits_for_memory_does_not_keep_the_front_end_awake(site, full):
    began, begin = time.monotonic(), site.look()["stats"]["sleeps"]
    time.sleep(0.3)
    sleeps = site.look()["stats"]["sleeps"] - begin
    assert sleeps < 3000 * (time.monotonic() - began)  # there is a tick in a millisecond


def test_streams_that_waited_for_memory_are_read_as_it_comes_free(site, full):
    for _ in full:
        assert site.one.batch(20) is not None
        site.one.done(0)
    assert [sorted(client.answers(1)) for client in full] == [[1]] * len(full)


def test_a_stream_that_waits_for_memory_and_is_reset_ends(site, nic, full):
    for client in full:
        if client.kind == "tcp":
            reset = struct.pack("ii", 1, 0)
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        client.socket.close()
    landed = site.look()["stats"]["placed_segments"]
    assert landed < len(full)
    nic.until(lambda: site.look()["sessions"] <= landed, "its end is seen")
