"""A front end with several threads: each function is one's, and only the port is all's."""

import contextlib
import secrets
import threading

import numpy as np
import pytest

from shunter.nic_frontend.client import AuthenticationError, Client, Session
from shunter.nic_frontend.client.requests.errors import UnavailableError
from shunter.nic_frontend.server import front_end as front_ends
from shunter.nic_frontend.server import listeners
from shunter.nic_frontend.server.front_end import FrontEnd, Settings
from shunter.nic_frontend.server.listeners import loop_of
from shunter.nic_frontend.wire.layout import Flags, WireStatus

LONG = 60
SHAPE = [("float32", (1000,))]
"""Longer than a datagram of Ethernet."""
KINDS = ("udp", "tcp", "unix")


def times(factor):
    def infer(inputs, outputs):
        outputs[0].copy_(inputs[0] * factor)

    return {"inputs": SHAPE, "outputs": SHAPE, "infer": infer}


def loop_with(service, model):
    """The number of the loop of a model."""
    found = service.front_end.functions.find(model, "")
    path = service.front_end.path
    return [path.of_function(found.id) is each for each in path._loops].index(True)


def requests_of(service):
    """How many each loop has got."""
    return [each["requests"] for each in (p.stats() for p in service.front_end.path._each())]


@pytest.fixture
def two(make_service):
    """Two models, each of a thread."""
    service = make_service(threads=2)
    service.serve("double", **times(2))
    service.serve("treble", **times(3))
    return service


class Asking:
    """Clients in threads that ask two models until they have asked enough; what went wrong."""

    def __init__(self, service, rounds, **options):
        self.wrong, self.answers = [], 0
        self._threads = [
            threading.Thread(
                target=self._ask, args=(service.url(kind), model, factor, seed, rounds, options)
            )
            for kind in KINDS
            for model, factor in (("double", 2), ("treble", 3))
            for seed in range(3)
        ]
        self.count = len(self._threads) * rounds * 4
        for each in self._threads:
            each.start()

    def _ask(self, url, model, factor, seed, rounds, options):
        chance = np.random.default_rng(seed)
        try:
            with Client(url, timeout_s=LONG, **options) as client:
                for _ in range(rounds):
                    given = [chance.random(1000, np.float32) for _ in range(4)]
                    for one, answer in zip(given, client.infer_many(model, given), strict=True):
                        assert (answer == one * np.float32(factor)).all()
                        self.answers += 1  # about; it is only read when all is over
        except BaseException as error:
            self.wrong.append((url, model, error))

    def all(self):
        for each in self._threads:
            each.join(LONG)
            assert not each.is_alive()
        return self.wrong


def test_two_models_on_two_threads_have_many_clients_of_all_kinds(two):
    assert {loop_with(two, "double"), loop_with(two, "treble")} == {0, 1}
    assert two.front_end.path.of_session(0) is not two.front_end.path.of_session(1 << 24)
    asking = Asking(two, 20)
    assert not asking.all()
    each, path = requests_of(two), two.front_end.path
    assert each == [asking.count / 2] * 2
    assert path.stats()["requests"] == asking.count
    two.until(lambda: path.sessions() == 0, "all sessions end")
    for function in two.front_end.functions.all():
        assert path.free_entries(function.id) == function.queue.entries


def test_with_a_key_and_protected_payloads_both_threads_check_and_decrypt(make_service):
    pytest.importorskip("cryptography")
    key = secrets.token_bytes(32)
    service = make_service(threads=2, key=key)
    service.serve("double", **times(2))
    service.serve("treble", **times(3))
    for options in ({"encrypt": True}, {"crc": True}):
        assert not Asking(service, 5, key=key, **options).all()
    assert all(requests_of(service))
    with pytest.raises(AuthenticationError):
        Session(service.url(), "double", timeout_s=LONG)


def test_a_key_that_goes_takes_its_sessions_of_all_threads_along(make_service, tmp_path):
    keys, secret = tmp_path / "keys.toml", tmp_path / "secret"

    def write(path, text):
        path.write_text(text)
        path.chmod(0o600)

    write(secret, "s" * 32)
    write(keys, '[[key]]\nid = "a"\nsecret_file = "secret"\n')
    service = make_service(threads=2, keys_file=keys)
    service.serve("double", **times(2))
    service.serve("treble", **times(3))
    with contextlib.ExitStack() as stack:
        for model in ("double", "treble"):
            for kind in KINDS:
                session = Session(
                    service.url(kind), model, key=b"s" * 32, key_id="a", timeout_s=LONG
                )
                stack.enter_context(session)
        assert [path.sessions() for path in service.front_end.path._each()] == [3, 3]
        keys.unlink()
        write(keys, '[[key]]\nid = "b"\nsecret_file = "secret"\n')
        service.front_end.read_keys()
        service.until(lambda: service.front_end.path.sessions() == 0, "they are ended")


def test_models_come_and_go_and_go_to_the_thread_with_the_fewest(two):
    first, second = loop_with(two, "double"), loop_with(two, "treble")
    assert (first, second) == (1, 0)  # the first thread also has all else to do
    third = two.serve("third", **times(4))
    assert loop_with(two, "third") == 1
    treble = two._workers[1]
    for gone in (third, treble):
        gone.close()
    functions = two.front_end.functions
    two.until(lambda: [each.model for each in functions.all()] == ["double"], "they are removed")
    with Client(two.url(), timeout_s=LONG) as client, pytest.raises(UnavailableError):
        client.infer("treble", np.ones(1000, np.float32))
    small = [("float32", (3,))]
    two.serve("treble", **{**times(5), "inputs": small, "outputs": small})
    assert loop_with(two, "treble") == 0
    for kind in KINDS:
        with Client(two.url(kind), timeout_s=LONG) as client:
            assert (client.infer("treble", np.ones(3, np.float32)) == 5).all()
            assert (client.infer("double", np.ones(1000, np.float32)) == 2).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_that_is_killed_takes_nothing_of_the_other_thread_along(site, nic, kind):
    site.serve(threads=2, unix=str(site.folder / "nic.stream"))
    first = site.worker(model="dies", batch=1)
    site.worker(model="stays")
    dies, stays = site.client(kind, model="dies"), site.client(kind, model="stays")
    assert loop_of(dies.session, 2) != loop_of(stays.session, 2)
    site.hold()
    lost, kept = dies.ask(1), dies.ask(2, add=Flags.IDEMPOTENT)
    nic.until(site.ran, "it runs")
    site.kill(first)
    site.go_on()
    for name in range(10, 40):
        asked = stays.ask(name)
        assert stays.answers(1) == {asked: stays.expected(name)}
    assert dies.answers(1) == {lost: WireStatus.WORKER_DIED}
    site.worker(model="dies")
    assert dies.answers(1) == {kept: dies.expected(2)}
    again = dies.ask(3)
    assert dies.answers(1) == {again: dies.expected(3)}


def test_the_front_end_ends_when_one_of_its_threads_does(tmp_path, built):
    front_end = FrontEnd(Settings(tmp_path / "nic.sock", port=0, threads=2))

    def fail(until_ns):
        raise OSError("no descriptor")

    with contextlib.closing(front_end):
        front_end.path._loops[1].path.run = fail
        with pytest.raises(OSError, match="no descriptor"):
            front_end.run()


def test_what_is_under_way_at_its_end_is_answered_by_both_threads(make_service, monkeypatch):
    monkeypatch.setattr(front_ends, "FINISH_S", LONG)
    service = make_service(threads=2)
    gate, begun = threading.Event(), threading.Semaphore(0)

    def infer(inputs, outputs):
        begun.release()
        assert gate.wait(LONG)
        outputs[0].copy_(inputs[0])

    for model in ("a", "b"):
        service.serve(model, SHAPE, SHAPE, infer, batch=1)
    one, answers = np.ones(1000, np.float32), []

    def ask(model, kind):
        with Client(service.url(kind), timeout_s=LONG) as client:
            answers.append(client.infer(model, one))

    threads = [threading.Thread(target=ask, args=(m, k)) for m in "ab" for k in KINDS]
    for each in threads:
        each.start()
    path = service.front_end.path
    for _ in range(2):
        assert begun.acquire(timeout=LONG)
    service.until(lambda: path.stats()["requests"] == len(threads), "all are there")
    service.front_end.stop()
    gate.set()
    for each in threads:
        each.join(LONG)
    assert len(answers) == len(threads)


def test_a_busy_thread_can_be_interrupted(two):
    """One that never sleeps looks at no descriptor, and not for the end of a turn that is long."""
    with Client(two.url(), timeout_s=LONG) as client:
        client.infer("double", np.ones(1000, np.float32))
        loop = two.front_end.path._loops[1]
        for _ in range(100):
            with loop.between() as path:
                path.stats()
        client.infer("double", np.ones(1000, np.float32))


def test_what_one_thread_only_can_do_is_refused(tmp_path, built, monkeypatch):
    for more in ({"xdp": "lo"}, {"verbs": "mlx5_0"}):
        with pytest.raises(ValueError, match="one thread"):
            FrontEnd(Settings(tmp_path / "nic.sock", port=0, threads=2, **more))
    monkeypatch.setattr(listeners, "_can_steer", lambda loops: False)
    with pytest.raises(ValueError, match="cannot steer"):
        FrontEnd(Settings(tmp_path / "nic.sock", port=0, threads=2))


def test_numbers_of_sessions_steer_to_their_function_and_use_all_of_the_table(two):
    path = two.front_end.path
    for function in two.front_end.functions.all():
        numbers = [path.new_session_id(function.id) for _ in range(500)]
        assert {path.of_session(each) for each in numbers} == {path.of_function(function.id)}
        assert len({each & 0xFF for each in numbers}) > 128
