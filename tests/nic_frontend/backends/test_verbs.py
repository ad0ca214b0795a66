"""The verbs backend over a libibverbs of our own: two ends in one process. Not run on hardware."""

import contextlib
import ctypes
import json
import os
import re
import socket
import struct
import subprocess
from pathlib import Path
from socket import AF_INET6

import numpy as np
import pytest

from shunter.nic_frontend import build, library
from shunter.nic_frontend.client import session

HERE = Path(__file__).parent
HOST, PEER, DMABUF = 0, 1, 2
AF_IB = 27
SONAME = "libibverbs.so.1"
BLOCKS, SPARE = 64, 8
WRONG = ("bad", "twice", "wrong_peer", "kept_bad", "wrong")
BACKEND = [*(build.HERE / "c/verbs").glob("*.c"), build.HERE / "c/udp/chunks.c"]
BACKEND += [build.HERE.parent / "batching/c/landing.c"]
ENVIRONMENT = {**os.environ, "ASAN_OPTIONS": "detect_odr_violation=0"}


def compiled(*command):
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    return done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """The ends, under the sanitizers where there are some, and the folder of their libibverbs."""
    folder = tmp_path_factory.mktemp("verbs")
    common = [*build.compiler(), "-std=c11", "-O1", "-g", *build.WARNINGS[:3], "-Werror"]
    probe = folder / "probe.c"
    probe.write_text("#include <infiniband/verbs.h>\n")
    if not compiled(*common, "-c", probe, "-o", folder / "probe.o")[0]:
        pytest.skip("rdma-core's header is missing (Debian: apt-get install libibverbs-dev)")
    library = folder / SONAME
    shared = ("-fPIC", "-shared", f"-Wl,-soname,{SONAME}", "-pthread")
    done, why = compiled(*common, *shared, HERE / "fake_verbs.c", "-o", library)
    assert done, why
    wanted = [HERE / "verbs_ends.c", *BACKEND]
    for more in (build.SANITIZERS, ()):
        command = [*common, *more, *build.includes(), *wanted, "-ldl", "-o", folder / "ends"]
        done, why = compiled(*command)
        if done:
            return folder
    pytest.fail(why)


class Ends:
    """A server's and a client's."""

    def __init__(self, folder, device="fake0", blocks=BLOCKS, memory=HOST, **environment):
        self.blocks = blocks
        self.process = subprocess.Popen(
            [str(folder / "ends"), device, str(blocks), str(memory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**ENVIRONMENT, "LD_LIBRARY_PATH": str(folder), **environment},
        )
        self.says = self.process.stdout.readline().strip()

    def do(self, line):
        """What there is afterwards; nothing is ever wrong."""
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        found = json.loads(self.process.stdout.readline())
        assert not any(found[each] for each in WRONG), (line, found)
        return found

    def close(self):
        """Nothing is left of it."""
        found = self.do("close")
        assert found["free"] == [self.blocks + SPARE] * 2
        assert found["alive"] == 0
        self.process.stdin.close()
        assert self.process.wait(20) == 0


@pytest.fixture
def open_ends(programs):
    """Opens them, and looks at the end whether all is let go of."""
    with contextlib.ExitStack() as stack:
        opened = []

        def open_ends(**options):
            ends = Ends(programs, **options)
            stack.enter_context(ends.process)
            stack.callback(ends.process.kill)
            assert "not run on hardware" in ends.says
            assert "not run on hardware" in ends.process.stdout.readline()
            opened.append(ends)
            return ends

        yield open_ends
        for ends in opened:
            ends.close()


@pytest.fixture
def ends(open_ends):
    return open_ends()


def test_what_there_is_is_told(ends):
    found = ends.do("ready")
    assert (found["mtu"], found["far"]) == (2048, False)


@pytest.mark.parametrize("length", [0, 1, 64, 65, 1000, 1984])
@pytest.mark.parametrize(
    ("how", "direct", "copied"), [("c", False, False), ("p", False, True), ("d", True, False)]
)
def test_datagrams_come_in_two_parts_and_are_answered(ends, how, length, direct, copied):
    """Inside the request where they are small; else from where they lie, or copied."""
    for first in range(0, 320, 64):  # no more wait to be received than there are places
        ends.do(f"send {first} 64 {length} {how}")
        ends.do("spoil")  # the memory is its owner's again
        ends.do("poll")
        found = ends.do("answers")
    assert (found["came"], found["received"], found["answers"]) == (320, 320, 320)
    large = length > 64
    assert found["direct"] == (320 if direct and large else 0)
    assert found["copied"] == (320 * length if copied and large else 0)
    assert found["failed"] == found["landed_copied"] == 0


def test_what_is_too_long_for_the_path_is_not_sent(ends):
    ends.do("send 0 1 1985 c")
    found = ends.do("poll")
    assert (found["came"], found["failed"], found["no_address"]) == (0, 1, 0)


def test_its_descriptor_tells_of_what_comes(ends):
    assert not ends.do("poll")["ready"]
    assert ends.do("send 0 1 100 d")["ready"]
    assert not ends.do("poll")["ready"]
    assert ends.do("send 1 1 100 d")["ready"]
    assert ends.do("poll")["came"] == 2


def test_nothing_that_comes_is_slept_over(ends):
    """Whoever sleeps after each look is woken for all that is there and all that comes."""
    ends.do("send 0 10 100 c")
    found = ends.do("once")
    assert (found["came"], found["ready"]) == (10, False)
    assert ends.do("send 10 100 100 d")["ready"]
    came = []
    while ends.do("ready")["ready"]:
        came.append(ends.do("once")["came"])
    assert came[-1] == 110 and len(came) > 1


def test_a_peer_of_ipv4_is_told_from_one_of_ipv6(ends):
    ends.do("fake ipv4 1")
    ends.do("send 0 3 100 c")
    assert ends.do("poll")["came"] == 3


def test_lost_datagrams_are_lost_whole(ends):
    ends.do("fake lose 5")
    ends.do("send 0 50 500 p")
    assert ends.do("poll")["came"] == 45


def test_datagrams_without_a_whole_header_are_told_or_counted(ends):
    ends.do("fake cut 30")
    ends.do("send 0 2 500 p")
    assert ends.do("poll")["short"] == 2
    ends.do("fake cut -1")
    ends.do("send 2 3 500 p")
    found = ends.do("poll")
    assert (found["short"], found["empty"], found["recoveries"]) == (2, 3, 0)


def test_after_an_error_in_receiving_it_receives_again(ends):
    ends.do("send 0 20 700 p")
    ends.do("fake receive_error 1")
    ends.do("poll")
    found = ends.do("poll")
    assert (found["came"], found["receive_errors"] > 0, found["recoveries"]) == (0, True, 1)
    ends.do("send 20 30 700 p")
    found = ends.do("poll")
    assert (found["came"], found["recoveries"]) == (30, 1)


def test_after_an_error_in_sending_it_sends_again(ends):
    ends.do("fake send_error 1")
    ends.do("send 0 20 700 p")
    ends.do("poll")
    found = ends.do("answers")
    assert (found["send_errors"], found["client_recoveries"]) == (20, 1)
    assert found["failed"] == 20
    ends.do("send 20 30 700 d")
    ends.do("poll")
    found = ends.do("answers")
    assert (found["came"], found["answers"], found["client_recoveries"]) == (30, 30, 1)


def test_what_cannot_be_posted_is_posted_later_or_counted(ends):
    ends.do("send 0 60 700 p")
    ends.do("fake post_receive 2")
    ends.do("poll")
    ends.do("fake post_send 1")
    found = ends.do("send 60 40 700 d")
    assert found["failed"] == 40
    for first in range(100, 1000, 60):
        ends.do(f"send {first} 60 700 p")
        found = ends.do("poll")
    assert found["came"] == 60 + 15 * 60


def test_more_peers_than_there_is_room_for(ends):
    for number in range(1, 3000):
        ends.do(f"to {number}")
        ends.do(f"send 0 1 {number % 200} d")
    found = ends.do("answers")
    assert (found["no_address"], found["failed"], found["sent"]) == (0, 0, 2999)
    ends.do("to 0")
    ends.do("send 0 1 200 d")
    found = ends.do("poll")
    assert found["came"] == 1
    assert found["alive"] < 1100, "addresses that nobody uses"


def test_a_peer_that_cannot_be_reached_is_counted(ends):
    ends.do("fake address 1")
    ends.do("send 0 2 100 p")
    found = ends.do("poll")
    assert (found["no_address"], found["failed"], found["came"]) == (1, 1, 1)


def test_memory_of_others_is_not_read_after_the_flush(ends):
    """A device that does not get on with it is reset."""
    ends.do("fake stall 1")
    found = ends.do("send 0 5 1000 d")
    assert (found["client_recoveries"], found["failed"]) == (1, 5)
    ends.do("fake stall 0")
    ends.do("spoil")
    assert ends.do("poll")["came"] == 0
    ends.do("send 5 5 1000 d")
    assert ends.do("poll")["came"] == 5


def kept(ends):
    """Many payloads, all of which stay."""
    ends.do("keep 300")
    for first in range(0, 300, 30):
        ends.do(f"send {first} 30 900 p")
        found = ends.do("poll")
    ends.do("release")
    return found


def test_kept_payloads_are_put_together_when_blocks_are_scarce(open_ends):
    found = kept(open_ends(blocks=16))
    assert found["came"] == 300
    assert found["landed_copied"] > 0


@pytest.mark.parametrize("memory", [PEER, DMABUF])
def test_payloads_on_a_device_stay_there(open_ends, memory):
    ends = open_ends(blocks=16, memory=memory)
    assert ends.do("ready")["far"]
    found = kept(ends)
    assert found["came"] > 200
    assert found["landed_copied"] == 0


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"device": "other0"}, "no verbs on other0: opening it: No such device"),
        ({"device": "fake0:2"}, "no verbs on fake0:2: its port: Network is down"),
        ({"device": "fake0:3"}, "no verbs on fake0:3: its port: Input/output error"),
        ({"FAKE": "register"}, "registering the landing pool: Operation not supported"),
        ({"blocks": 0}, "no verbs on fake0"),
        ({"LD_LIBRARY_PATH": "/nowhere"}, "no verbs on fake0: libibverbs.so.1: "),
    ],
)
def test_where_it_cannot_be_it_says_why_and_leaves_nothing(programs, options, why):
    ends = Ends(programs, **options)
    with ends.process:
        if "LD_LIBRARY_PATH" in options and ends.says.startswith("no verbs on fake0: opening it"):
            pytest.skip("there is another libibverbs")
        assert why in ends.says
        left = json.loads(ends.process.stdout.readline())
    assert left == {"free": ends.blocks + SPARE, "alive": 0}
    assert ends.process.returncode == 4


# ---- a front end


@pytest.fixture
def fake_device(programs, monkeypatch):
    """The device in this process, and a data path that knows of RDMA."""
    ctypes.CDLL(str(programs / SONAME))
    path = build.build(programs / "libshunter.so")
    monkeypatch.setenv(library.VARIABLE, str(path))
    library.library.cache_clear()
    yield
    library.library.cache_clear()


@pytest.fixture
def relay(programs):
    """What speaks to queue pairs for clients that know UDP only."""
    path = programs / "relay.so"
    flags = ["-std=c11", "-O1", "-fPIC", "-shared", "-pthread", *build.includes()]
    done, why = compiled(*build.compiler(), *flags, HERE / "verbs_relay.c", *BACKEND, "-o", path)
    assert done, why
    return ctypes.CDLL(str(path))


def test_a_front_end_serves_queue_pairs_beside_its_socket(
    fake_device, relay, make_service, monkeypatch, caplog
):
    with caplog.at_level("INFO", "shunter.nic"):
        service = make_service(verbs="fake0")
    [said] = [each for each in caplog.messages if each.startswith("verbs on fake0")]
    assert "not run on hardware so far" in said
    gid, lid, number = re.search(r"GID (\S+), LID (\d+), queue pair (\d+)", said).groups()
    tensors = [("uint8", (20_000,))], [("uint8", (5_000,))]

    def infer(inputs, outputs):
        outputs[0].copy_(inputs[0][:, ::4] ^ 0xFF)

    service.serve("m", *tensors, infer)
    ends = struct.pack("<HHI", AF_IB, int(lid), int(number)) + socket.inet_pton(AF_INET6, gid)
    port = relay.relay_start((ends + b"\1").ljust(64, b"\0"))
    monkeypatch.setattr(session, "segment_of", lambda _: 1984)  # its path's, not UDP's
    contents = np.random.default_rng(3).integers(0, 256, (8, 20_000), np.uint8)
    for url in (f"udp://127.0.0.1:{port}", service.url()):
        with session.Session(url, "m", timeout_s=60) as client:
            for content in contents:
                [found] = client.infer([content])
                assert np.array_equal(found, content[::4] ^ 0xFF)
    carried = relay.relay_stop()
    service.stop(gently=True)
    assert carried >= 8 * 3
