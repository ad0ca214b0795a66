"""Payloads stay where they land until they are gathered, and every block of the pool comes back."""

import contextlib
import random
import threading

import numpy as np
import pytest

from shunter.batching.queue.layout import BLOCK
from shunter.nic_frontend.client import Session
from shunter.nic_frontend.wire.layout import Flags, MessageType, WireStatus

SLOTS = 34
"""Blocks that are about to be filled: one for each message that can come at once, and two."""


def waiting_client(site, nic):
    """A client of a model that has no worker any more."""
    puppet = site.puppet()
    client = site.client()
    puppet.die()
    nic.until(lambda: site.function()["workers"] == [], "its end is seen")
    return client


def kept(site):
    """Blocks that are not free, but for those that are about to be filled."""
    stats = site.look()["stats"]
    return max(0, stats["landing_blocks"] - stats["landing_free"] - SLOTS)


class Storm:
    """Clients that ask, cancel, stop in the midst and go; workers that die."""

    def __init__(self, site, nic, seed):
        self.site, self.nic, self.random = site, nic, random.Random(seed)
        self.workers = [site.worker(batch=4), site.worker(batch=3)]
        self.clients = [site.client(kind) for kind in ("udp", "tcp", "udp", "tcp")]
        self.statuses, self.cancelled = [], 0

    def ask(self):
        """Some requests, of which some are cancelled, too late, or never complete."""
        client, asked = self.random.choice(self.clients), {}
        last = 0
        for _ in range(self.random.randrange(1, 9)):
            name = self.random.randrange(1 << 20)
            more = {"add": Flags.IDEMPOTENT} if self.random.random() < 0.5 else {}
            more |= {"deadline_us": 1} if self.random.random() < 0.1 else {}
            if self.random.random() < 0.1:
                number, client.next_id = client.next_id, client.next_id + 1
                for seq in self.random.sample(range(4), self.random.randrange(1, 4)):
                    client.segment(number, seq, name, **more)
                client.control(MessageType.CANCEL, number)
                self.cancelled += 1
            else:
                number = client.ask(name, **more)
                if self.random.random() < 0.15:
                    client.control(MessageType.CANCEL, number)
                    self.cancelled += 1  # or it runs already
                else:
                    asked[number] = name
            last = number
        for number, answer in client.answers_to(asked).items():
            if isinstance(answer, list):
                assert answer == client.expected(asked[number])
            else:
                self.statuses.append(answer)
        client.acknowledge(last + 1)

    def break_a_stream(self):
        """In the midst of a payload, while another of its requests may run."""
        client = self.site.client("tcp")
        client.ask(5)
        client.segment(2, 0)
        client.put(client.header(req_id=2, seq=1).pack() + b"y" * 100)
        client.socket.close()

    def kill_a_worker(self):
        """While it runs a batch."""
        client = self.random.choice(self.clients)
        ran = len(self.site.ran())
        self.site.hold()
        asked = [client.ask(n, add=Flags.IDEMPOTENT * (n % 2)) for n in range(6)]
        self.nic.until(lambda: len(self.site.ran()) > ran)
        pid = self.site.ran()[-1][0]
        self.site.kill(pid)
        self.site.go_on()
        self.workers[self.workers.index(pid)] = self.site.worker(batch=4)
        client.answers_to(asked)
        client.acknowledge(max(asked) + 1)


def test_every_block_comes_back(site, nic):
    site.serve()
    storm = Storm(site, nic, seed=7)
    for number in range(500):
        storm.ask()
        if number % 50 == 20:
            storm.kill_a_worker()
        if number % 25 == 10:
            storm.break_a_stream()
    stats = site.look()["stats"]
    assert stats["requests"] > 1500
    assert set(storm.statuses) == {WireStatus.TOO_LATE} and storm.cancelled > 100
    nic.until(lambda: site.look()["sessions"] == len(storm.clients), "broken streams are seen")
    for client in storm.clients:
        client.socket.close()
    puppet = site.puppet()
    nic.until(lambda: site.function()["waiting"] == 0)
    nic.until(lambda: kept(site) == 0, "blocks come back")
    nic.until(lambda: puppet.held() == 0, "no entry holds a part of an input")


LARGE = [("float32", (12_000,))]
"""48,000 bytes: not two in one block."""


@pytest.mark.parametrize("scheme", ["udp", "tcp", "unix"])
@pytest.mark.parametrize("blocks", [4, 40])
def test_a_pool_that_is_too_small_makes_requests_wait_and_loses_none(make_service, scheme, blocks):
    def twice(inputs, outputs):
        outputs[0].copy_(2 * inputs[0])

    service = make_service(landing_bytes=blocks * BLOCK)
    service.serve("twice", LARGE, LARGE, twice, batch=4)
    failed = []

    def ask(first):
        requests = [[np.full(LARGE[0][1], first + i, "float32")] for i in range(12)]
        try:
            with Session(service.url(scheme), "twice", timeout_s=120) as client:
                answers = client.infer_many(requests, timeout_s=120)
                found = [(float(a.min()), float(a.max())) for [a] in answers]
            assert found == [(2 * (first + i),) * 2 for i in range(12)]
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=ask, args=(100 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(150)
        assert not thread.is_alive()
    assert not failed
    stats = service.front_end.path.stats()
    assert stats["landing_blocks"] == blocks


def test_a_request_that_runs_again_has_the_input_that_its_client_sent(site, nic):
    """Its first handler wrote into its inputs, and died."""
    site.serve()
    client = waiting_client(site, nic)
    (site.folder / "spoil").touch()
    site.hold()
    first = site.worker(batch=4)
    asked = {client.ask(name, add=Flags.IDEMPOTENT): name for name in (3, 4, 5)}
    nic.until(site.ran, "a batch runs")
    nic.until((site.folder / "spoilt").exists)
    site.kill(first)
    (site.folder / "spoil").unlink()
    site.go_on()
    site.worker(batch=4)
    assert client.answers(3) == {i: client.expected(name) for i, name in asked.items()}
    assert max(site.executions().values()) == 2


HOSTS = [
    ("0.0.0.0", "127.0.0.2", "udp"),
    ("0.0.0.0", "127.0.0.2", "tcp"),
    ("::", "127.0.0.2", "udp"),
    ("::", "::1", "udp"),
]


@pytest.mark.parametrize(("host", "asked", "scheme"), HOSTS)
def test_answers_come_from_the_address_that_was_asked(make_service, double, host, asked, scheme):
    """Those of workers and those of the front end: a client takes datagrams from nobody else."""
    service = make_service(host=host)
    service.serve("m", **double)
    port = service.url().rpartition(":")[2]
    where = f"[{asked}]" if ":" in asked else asked
    with contextlib.ExitStack() as stack:
        clients = [
            stack.enter_context(Session(f"{scheme}://{where}:{port}", "m", timeout_s=60))
            for _ in range(2)
        ]
        for number in range(20):
            for client in clients:
                [answer] = client.infer([np.full(3, number, "float32")])
                assert answer.tolist() == [2 * number] * 3
