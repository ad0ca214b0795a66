"""Datagrams that the kernel splits, between two network namespaces."""

import contextlib
import ctypes
import importlib.util
import json
import socket
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from shunter.nic_frontend import build

HERE = Path(__file__).parent
PORT = 5000
HEADER = 64
AS_USUAL = 0
IP_OPTIONS, NO_OPERATION = 4, b"\x01"
CAP_SYS_ADMIN, CAP_BPF, PR_CAPBSET_DROP = 21, 39, 24


def _veth():
    spec = importlib.util.spec_from_file_location("nic_veth", HERE / "veth.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


VETH = _veth()


@pytest.fixture(scope="module")
def receiver(tmp_path_factory):
    """The program, under the sanitizers where there are some."""
    path = tmp_path_factory.mktemp("xdp") / "receiver"
    wanted = [HERE / "xdp_receiver.c", *(build.HERE / "c/xdp").glob("*.c")]
    wanted += [build.HERE / f"c/{name}.c" for name in ("udp/udp", "common/datagrams")]
    wanted += [build.HERE / "c/udp/chunks.c"]
    wanted += [build.HERE.parent / "batching/c/landing.c"]
    common = [*build.compiler(), "-std=c11", "-O1", "-g", *build.WARNINGS[:3], "-Werror"]
    for more in (build.SANITIZERS, ()):
        command = [*common, *more, *build.includes(), *map(str, wanted), "-o", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return path
    pytest.fail(done.stderr)


@pytest.fixture(scope="module", params=[(1500, 1)])
def network(request):
    """The link, by MTU and queues."""
    mtu, queues = request.param
    try:
        with VETH.Network(mtu, queues) as network:
            yield network
    except VETH.ImpossibleError as error:
        pytest.skip(f"no network of its own: {error}")


class Receiver:
    """A process at the server's end."""

    def __init__(self, path, network, host, blocks=128, header_bytes=AS_USUAL, keep=0, port=PORT):
        command = [*network.before(network.server), str(path), VETH.INTERFACE, host, str(port)]
        command += [str(each) for each in (blocks, header_bytes, keep)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.says = self.process.stdout.readline().strip()

    def do(self, line):
        """What it answers."""
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline()

    def counts(self, line="counts"):
        return json.loads(self.do(line))

    def close(self):
        """It ends by itself; what it counted."""
        found = self.counts("close")
        assert self.process.wait(20) == 0
        return found


@pytest.fixture
def receive(receiver, network):
    """Starts them, and ends them."""
    with contextlib.ExitStack() as stack:

        def receive(host=VETH.SERVER4, splits=True, **options):
            found = Receiver(receiver, network, host, **options)
            stack.enter_context(found.process)
            stack.callback(found.process.kill)
            if splits and "Operation not permitted" in found.says:
                pytest.skip(found.says)
            assert found.says.startswith("AF_XDP" if splits else "no AF_XDP"), found.says
            return found

        yield receive


def until(condition, what):
    end = time.monotonic() + 20
    while not (found := condition()):
        assert time.monotonic() < end, what
        time.sleep(0.01)
    return found


def sender(address, port=PORT):
    """A socket of the client that is connected to there."""
    six = ":" in address
    found = socket.socket(socket.AF_INET6 if six else socket.AF_INET, socket.SOCK_DGRAM)
    found.bind((VETH.CLIENT6 if six else VETH.CLIENT4, 0))
    found.connect((address, port))
    found.settimeout(20)
    return found


def tell(address, port, content):
    with sender(address, port) as sock:
        sock.send(content)


def _six(address):
    return socket.inet_pton(socket.AF_INET6, address if ":" in address else f"::ffff:{address}")


def ends_of(sock, mapped):
    """What the server is to see: the peer as a socket address, and its own address."""
    (mine, port), (theirs, _) = sock.getsockname()[:2], sock.getpeername()[:2]
    if mapped or sock.family == socket.AF_INET6:
        family = socket.AF_INET6.to_bytes(2, "little")
        peer = family + port.to_bytes(2, "big") + bytes(4) + _six(mine)
        return peer + family + _six(theirs)
    family = socket.AF_INET.to_bytes(2, "little")
    peer = family + port.to_bytes(2, "big") + socket.inet_aton(mine)
    return peer.ljust(24, b"\0") + family + socket.inet_aton(theirs).ljust(16, b"\0")


def datagram(number, length, ends):
    at = np.arange(length, dtype=np.uint32)
    payload = (number * 31 + at * 7 + (at >> 8)).astype(np.uint8).tobytes()
    header = number.to_bytes(4, "little") + length.to_bytes(4, "little") + bytes(8)
    return (header + ends).ljust(HEADER, b"\0") + payload


def send(found, numbers, address, length, mapped=False, at_once=128):
    """Datagrams with these numbers from a new socket, as long as ``length`` says; so many at once
    that none of them is lost on the way: the link holds 256. 0: all."""
    with sender(address) as sock:
        ends = ends_of(sock, mapped)
        for count, number in enumerate(numbers, 1):
            sock.send(datagram(number, length(number), ends))
            if at_once and count % at_once == 1:  # the first asks for the neighbour's address
                until_came(found, numbers[count - 1] + 1)


def until_came(found, count):
    def all_of_it():
        counts = found.counts()
        return counts if counts["came"] >= count else None

    return until(all_of_it, f"{count} datagrams: {found.counts()}")


def is_right(counts):
    """Nothing that came was wrong."""
    wrong = ("bad", "twice", "wrong_peer", "kept_bad")
    return not any(counts[each] for each in wrong)


@pytest.mark.parametrize(
    ("network", "host"),
    [
        ((1500, 1), VETH.SERVER4),
        ((1500, 1), VETH.SERVER6),
        ((1500, 1), "0.0.0.0"),
        ((1500, 2), "::"),
        ((9000, 1), "::"),  # frames too large for the driver's program
    ],
    indirect=["network"],
)
def test_headers_and_payloads_come_in_pairs(network, receive, host):
    found = receive(host, keep=300)
    addresses = [VETH.SERVER4, VETH.OTHER4, VETH.SERVER6]
    addresses = [host] if host in addresses else addresses[: 3 if host == "::" else 2]
    each, mapped = 2500, ":" in host
    for i, address in enumerate(addresses):
        numbers = range(i * each, (i + 1) * each)
        network.from_client(send, found, numbers, address, lambda number: number % 1389, mapped)
    sent = each * len(addresses)
    counts = until_came(found, sent)
    assert counts["came"] == counts["split"] == counts["paired"] == sent
    assert counts["kept"] == 300 and counts["copied_bytes"] == 0
    assert is_right(counts)
    found.do("release")
    assert network.xdp()
    end = found.close()
    assert is_right(end)
    assert end["free"] == 128 + 512, "blocks that nobody lets go of"
    assert not network.xdp()


def test_an_answer_leaves_from_the_address_that_was_asked(network, receive):
    found = receive("::")
    found.do("echo")

    def ask(address):
        with sender(address) as sock:
            sock.send(datagram(1, 100, ends_of(sock, True)))
            return sock.recv(100)

    for address in (VETH.SERVER4, VETH.OTHER4, VETH.SERVER6):
        assert network.from_client(ask, address)[:4] == (1).to_bytes(4, "little")
    assert found.counts()["split"] == 3


def test_all_else_goes_its_way(network, receive):
    """What it does not split comes by the socket: fragments, options, less than a header."""
    found = receive(VETH.SERVER4)

    def others():
        with socket.create_server((VETH.SERVER4, PORT)) as server:
            server.settimeout(20)
            network.from_client(lambda: socket.create_connection((VETH.SERVER4, PORT), 20).close())
            server.accept()[0].close()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
            other.bind((VETH.SERVER4, PORT + 1))
            other.settimeout(20)
            network.from_client(tell, VETH.SERVER4, PORT + 1, b"other port".ljust(100))
            assert other.recv(100).startswith(b"other port")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
            other.bind((VETH.OTHER4, PORT))
            other.settimeout(20)
            network.from_client(tell, VETH.OTHER4, PORT, b"other host".ljust(100))
            assert other.recv(100).startswith(b"other host")

    network.from_server(others)
    assert found.counts()["came"] == 0

    def odd():
        with sender(VETH.SERVER4) as sock:
            ends = ends_of(sock, False)
            sock.send(datagram(0, 5000, ends))
            sock.send(b"short")
            sock.setsockopt(socket.IPPROTO_IP, IP_OPTIONS, NO_OPERATION * 4)
            sock.send(datagram(1, 100, ends))

    network.from_client(odd)
    counts = until_came(found, 2)
    assert counts["split"] == counts["paired"] == 0
    until(lambda: found.counts()["short"] == 1, "the short one")
    assert is_right(found.close())


def test_for_what_finds_no_room_for_its_header_the_socket_is_there(network, receive):
    found = receive(header_bytes=4096)
    network.from_client(send, found, range(1), VETH.SERVER4, lambda _: 100)
    until_came(found, 1)
    found.do("pause")
    network.from_client(lambda: send(found, range(1, 200), VETH.SERVER4, lambda _: 100, at_once=0))
    until(lambda: found.counts()["no_room"] > 0, "no room")
    found.do("go")
    counts = until_came(found, 200)
    assert counts["came"] - counts["paired"] == counts["no_room"] > 0
    assert counts["lost_payloads"] == counts["lost_headers"] == 0
    assert is_right(found.close())


def test_lost_payloads_are_counted_and_pair_with_no_other_header(network, receive):
    """While nobody reads, their ring is full long before that of the headers."""
    found = receive(blocks=8)
    network.from_client(send, found, range(1), VETH.SERVER4, lambda _: 100)
    until_came(found, 1)
    found.do("pause")
    network.from_client(
        lambda: send(found, range(1, 200), VETH.SERVER4, lambda number: number, at_once=0)
    )
    until(lambda: found.counts()["dropped"] > 100, "a full ring")
    found.do("go")

    def all_told():
        counts = found.counts()
        return counts["came"] + counts["dropped"] == 200

    until(all_told, "what came, and what did not")
    assert found.counts()["lost_payloads"] == 0, "as far as can be seen"
    before = found.counts()["came"]
    network.from_client(lambda: send(found, range(200, 201), VETH.SERVER4, lambda _: 9, at_once=0))
    counts = until_came(found, before + 1)
    assert counts["lost_payloads"] == counts["dropped"] == counts["overflows"] == 200 - before
    assert counts["lost_headers"] == 0
    assert is_right(found.close())


def test_a_lost_header_is_counted_and_its_payload_pairs_with_no_other(network, receive):
    found = receive()
    found.do("pause")
    network.from_client(
        lambda: send(found, range(30), VETH.SERVER4, lambda number: number, at_once=0)
    )
    found.do("lose")
    found.do("lose")
    found.do("go")
    counts = until_came(found, 28)
    assert (counts["lost_headers"], counts["lost_payloads"]) == (2, 0)
    assert is_right(found.close())


def test_kept_payloads_are_put_together_when_blocks_are_scarce(network, receive):
    """Each keeps a block with all of its chunks otherwise."""
    found = receive(blocks=16, keep=2000)
    network.from_client(lambda: send(found, range(2000), VETH.SERVER4, lambda _: 1000, at_once=32))
    counts = until_came(found, 2000)
    assert counts["kept"] == 2000
    assert counts["copied_bytes"] > 0 == counts["dropped"]
    found.do("release")
    end = found.close()
    assert is_right(end)
    assert end["free"] == 16 + 512


def test_the_program_is_gone_with_its_process(network, receive):
    found = receive()
    assert network.xdp()
    again = receive(port=PORT + 1, splits=False)
    assert "another XDP program or AF_XDP socket has it" in again.says
    found.process.kill()
    found.process.wait()
    until(lambda: not network.xdp(), "the program is gone")
    receive()  # although the kernel may not have let go of everything yet


def test_a_host_without_rights_is_told_so(receiver):
    def drop():
        for capability in (CAP_SYS_ADMIN, CAP_BPF):
            ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)

    command = [str(receiver), "lo", "127.0.0.1", "0", "16", "0", "0"]
    done = subprocess.run(
        command, preexec_fn=drop, capture_output=True, text=True, check=False, timeout=20
    )
    assert done.returncode == 4
    assert done.stdout.startswith("no AF_XDP on lo: ")
    assert "it needs CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF" in done.stdout


@pytest.mark.parametrize("name", ["nowhere0", "a name that no interface can have"])
def test_an_interface_that_is_not_there(receiver, name):
    command = [str(receiver), name, "127.0.0.1", "0", "16", "0", "0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    assert done.returncode == 4
    assert done.stdout == f"no AF_XDP on {name}: looking at it: No such device\n"
