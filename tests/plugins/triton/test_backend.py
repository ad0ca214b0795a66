"""The backend of Triton under the sanitizers: a fake of the server, real hosts and workers.

Whatever happens to workers, each request is answered once: with its own results, or with an error.
"""

import importlib.util
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from shunter.batching.page import holds
from shunter.batching.page.layout import RUNNERS_OFFSET, Order
from shunter.batching.page.slices import EVERY
from shunter.batching.queue.attach import Attach, listen, receive
from shunter.batching.queue.native_parts import Parts, PartsEnd
from shunter.batching.queue.packed import PackedError
from shunter.batching.queue.tensor_spec import ANY, TensorSpec
from shunter.nic_frontend import build as native
from shunter.nic_frontend.server.model_policy import Policy
from shunter.plugins.errors import UserError
from shunter.plugins.slot_writer import ServerPage
from shunter.plugins.triton import build, layout
from shunter.plugins.triton.backend import Backend, BackendGone
from shunter.plugins.triton.layout import Kind
from shunter.plugins.triton.reception import Reception

HERE = Path(__file__).parent
PATIENCE_S = 60
_WORKER = importlib.util.spec_from_file_location("triton_worker", HERE / "tensor_worker.py")
tensor_worker = importlib.util.module_from_spec(_WORKER)
_WORKER.loader.exec_module(tensor_worker)
_SPEC = importlib.util.spec_from_file_location(
    "triton_packed_worker", HERE.parents[1] / "nic_frontend/packed_worker.py"
)
packed_worker = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(packed_worker)
PARTS = 7
"""See fake_triton.c."""
OK, INTERNAL, INVALID, UNAVAILABLE, UNSUPPORTED, CANCELLED = "0", "1", "3", "4", "5", "7"


@pytest.fixture(scope="module", params=["address,undefined", "thread"])
def program(request, tmp_path_factory):
    """fake_triton with the backend inside."""
    native.ensure()
    found = tmp_path_factory.mktemp("fake") / "fake_triton"
    flags = ["-std=c11", "-O1", "-g", "-pthread", *native.WARNINGS, "-ffp-contract=off"]
    flags += [f"-fsanitize={request.param}", "-fno-sanitize-recover=all", *build.includes()]
    flags += ["-DSHUNTER_UNUSED_NS=300000000ULL"]
    sources = [HERE / "fake_triton.c", *build.sources()]
    command = [*native.compiler(), *flags, *map(str, sources), "-lm", "-o", str(found)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return found


class Site:
    """A fake server, a reception and workers."""

    def __init__(self, program, folder):
        self._program, self._folder = program, folder
        self.at, self.attach_at = folder / "backend.sock", folder / "attach.sock"
        self._processes, self.reception = [], None
        self.receive()

    def receive(self):
        self.reception = Reception(self.attach_at, self.at, lambda: 1e12)
        self.reception.start()

    def worker(self, dim, fail_every=0, *, child=False, at=None, model="m", lock=(), **variables):
        command = [sys.executable, str(HERE / "tensor_worker.py")]
        command += [str(at or self.attach_at), str(dim), str(fail_every), str(int(child)), model]
        command += map(str, lock)
        environ = {**os.environ, **variables}
        self._processes.append(subprocess.Popen(command, stdin=subprocess.PIPE, env=environ))
        return self._processes[-1]

    def pool(self, dim, *, seats=False):
        """A process that serves m and n; ``seats``: others have connected for it."""
        command = [sys.executable, str(HERE / "pool_worker.py"), str(self.attach_at), str(dim)]
        command += ["seats"] if seats else []
        self._processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        return self._processes[-1]

    def serve(self, threads, requests, dim, *, seed=1, cancels=0, **variables):
        command = [str(self._program), str(self.at), str(threads), str(requests), str(dim)]
        command += [str(seed), str(cancels)]
        with (self._folder / "log").open("w") as log:
            self._processes.append(
                subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    env={**os.environ, **variables},
                )
            )
        return self._processes[-1]

    def backend(self):
        """A connection, when it is there."""
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                return Backend(self.at)
            except BackendGone:
                assert time.monotonic() < end, self.log()
                time.sleep(0.01)

    def log(self):
        return (self._folder / "log").read_text()

    def ended(self, server):
        """How its requests ended, by code."""
        text, _ = server.communicate(timeout=PATIENCE_S)
        assert server.returncode == 0, self.log()[-4000:]
        return dict(line.split(" ", 1) for line in text.splitlines())

    def close(self):
        for each in self._processes:
            each.kill()
            each.communicate()
        self.reception.close()


@pytest.fixture
def site(program, tmp_path):
    site = Site(program, tmp_path)
    yield site
    site.close()


def wait_until(told):
    end = time.monotonic() + PATIENCE_S
    while not told():
        assert time.monotonic() < end
        time.sleep(0.005)


def answered(site):
    with site.backend() as backend:
        return sum(each["answered"] for each in backend.functions())


def answers_more(site, number):
    """Until more than so many have been answered from now on."""
    before = answered(site)
    wait_until(lambda: answered(site) > before + number)


def count(found):
    return sum(int(found[code]) for code in map(str, range(8)))


@pytest.mark.parametrize("dim", [16, 40000])
def test_every_request_gets_its_own_results_or_an_error_once(site, dim):
    for _ in range(2):
        site.worker(dim, fail_every=7)
    found = site.ended(site.serve(4, 90, dim, cancels=5))
    assert (count(found), found["wrong"]) == (360, "0")
    assert int(found[OK]) > 100
    assert int(found[INTERNAL]) > 0
    assert {code for code in "01234567" if found[code] != "0"} <= {
        OK,
        INTERNAL,
        UNAVAILABLE,
        CANCELLED,
    }
    requests, rows = map(int, found["told"].split())
    assert requests == int(found[OK])
    assert rows >= requests


@pytest.mark.parametrize("batched", [False, True])
def test_packed_requests_get_their_own_results_or_an_error_once(site, batched):
    """Runs are taken apart, and answers made, by Packing alone; they have up to three blocks."""
    inputs = TensorSpec("x", "float32", (ANY,)), TensorSpec("b", "bytes", (1,))
    outputs = TensorSpec("y", "float32", (ANY,)), TensorSpec("z", "bytes", (1,))
    server = site.serve(4, 60, 40000, cancels=20, FAKE_PACKED="1")
    form = {"batched": batched, "request_bytes": 700_000, "answer_bytes": 700_000}
    site.backend().close()
    workers = [
        packed_worker.PackedWorker(
            site.attach_at, "m", inputs, outputs, lambda x, b: (x + np.float32(1), b), **form
        )
        for _ in range(2)
    ]
    found = site.ended(server)
    for worker in workers:
        worker.close()
    assert (count(found), found["wrong"], found[INTERNAL]) == (240, "0", "0")
    assert int(found[OK]) > 60
    assert int(found[INVALID]) > 0  # texts that lie


def test_more_requests_than_may_wait_are_turned_away_and_those_that_wait_are_answered(site):
    site.reception.policies["m", 1] = Policy()
    site.reception.capacities["m", 1] = 2
    site.worker(16)
    found = site.ended(site.serve(4, 90, 16))
    assert (count(found), found["wrong"]) == (360, "0")
    assert int(found[UNAVAILABLE]) > 0 and int(found[OK]) > 0
    assert int(found[UNAVAILABLE]) + int(found[OK]) == 360


@pytest.mark.parametrize(("strict_us", "displaces"), [("0", True), ("1", False)])
def test_a_strict_request_that_is_too_late_anyway_takes_nobodys_place(site, strict_us, displaces):
    site.reception.policies["m", 1] = Policy()
    site.reception.capacities["m", 1] = 2
    site.worker(16)
    found = site.ended(site.serve(4, 150, 16, FAKE_STRICT_US=strict_us))
    assert (count(found), found["wrong"]) == (600, "0")
    assert (int(found["displaced"]) > 0) == displaces


class StreamedWorker(packed_worker.PackedWorker):
    """An answer to n numbers has n % PARTS parts; of some it says early that none follows."""

    _parts, dies = None, False

    def _answered(self, entry):
        self._parts = self._parts or PartsEnd(self.end)
        try:
            _, (x, b) = self.packings[0].unpack(self.run_of(entry))
        except PackedError:
            return 400
        part = np.frombuffer(self.packings[1].pack((x + np.float32(1), b)), np.uint8)
        parts = Parts(entry)
        for _ in range(x.size % PARTS):
            while not self._parts.look(parts):
                self._parts.sleep([parts], 1_000_000_000)
            if not parts.wanted:
                return 200
            self.queue.words[self.queue.entry(parts.place, "entry_result_bytes")] = len(part)
            self.results[parts.place, : len(part)] = part
            self._parts.is_there(parts)
            if self.dies:
                self.connection.shutdown(socket.SHUT_RDWR)
                raise EOFError
        if x.size % 2:
            self._parts.over(parts)
        return 200 if x.size % 5 else 500


def test_answers_in_parts_have_their_own_parts_and_end_once(site):
    """Also of workers that leave without a word in the midst of them."""
    inputs = TensorSpec("x", "float32", (ANY,)), TensorSpec("b", "bytes", (1,))
    outputs = TensorSpec("y", "float32", (ANY,)), TensorSpec("z", "bytes", (1,))
    server = site.serve(6, 0, 2000, cancels=10, FAKE_STREAMED="1")
    site.backend().close()
    form = {"streamed": True, "request_bytes": 10_000, "answer_bytes": 10_000}
    workers = []
    for _ in range(4):
        before = answered(site)
        workers.append(StreamedWorker(site.attach_at, "m", inputs, outputs, None, **form))
        wait_until(lambda least=before + 15: answered(site) > least)
        workers[-1].dies = len(workers) % 2 == 1
    found = site.ended(server)
    for worker in workers:
        worker.close()
    assert count(found) > 60 and found["wrong"] == "0"
    assert min(int(found[code]) for code in (OK, INTERNAL, INVALID)) > 0


def test_what_a_killed_worker_held_runs_again(site):
    """Also when a child of it keeps its connection open."""
    workers = [site.worker(16, child=True) for _ in range(3)]
    server = site.serve(6, 0, 16)
    for i, worker in enumerate(workers):
        wait_until(lambda least=1000 * (i + 1): answered(site) > least)
        os.kill(worker.pid, signal.SIGKILL)
        site.worker(16)
    found = site.ended(server)
    assert (found["wrong"], found[INTERNAL]) == ("0", "0")
    assert count(found) > 1000


def test_two_models_of_one_process_have_room_for_two_batches_together(site):
    """Also when the process was killed with batches of both."""
    killed = site.pool(16)
    server = site.serve(6, 0, 16, FAKE_MODELS="2", seed=2, cancels=20)
    wait_until(lambda: answered(site) > 500)
    os.kill(killed.pid, signal.SIGKILL)
    before = answered(site)
    pool = site.pool(16)
    wait_until(lambda: answered(site) > before + 500)
    with site.backend() as backend:
        assert min(each["answered"] for each in backend.functions()) > 100
    found = site.ended(server)
    assert (found["wrong"], found[INTERNAL]) == ("0", "0")
    assert pool.communicate(timeout=PATIENCE_S)[0] == "2\n"


def test_a_process_whose_seat_has_ended_may_still_write_and_is_there_until_it_leaves(site):
    pool = site.pool(16, seats=True)
    server = site.serve(6, 0, 16, FAKE_MODELS="2")
    wait_until(lambda: answered(site) > 500)
    for _ in range(2):
        os.kill(int(pool.stdout.readline()), signal.SIGKILL)
        answers_more(site, 500)
    with site.backend() as backend:
        assert [each["workers"] for each in backend.functions()] == [1, 1]
    found = site.ended(server)
    assert (found["wrong"], found[INTERNAL]) == ("0", "0")
    assert pool.communicate(timeout=PATIENCE_S)[0] == "2\n"


def test_a_worker_that_has_answered_is_not_stuck_however_late_it_is_heard(site):
    worker = site.worker(16, RESPONSE_TIMEOUT_S="3")
    server = site.serve(4, 0, 16)
    for _ in range(3):
        answers_more(site, 200)
        os.kill(server.pid, signal.SIGSTOP)
        time.sleep(3.2)
        os.kill(server.pid, signal.SIGCONT)
    answers_more(site, 200)
    assert worker.poll() is None
    found = site.ended(server)
    assert (found["wrong"], found[INTERNAL]) == ("0", "0")


def test_a_worker_is_not_stuck_when_the_server_stood_still_from_its_first_answers_on(site):
    """Mostly before the backend has looked after its workers at all, which it does 20 times/s."""
    server = site.serve(4, 0, 16)
    site.backend().close()
    worker = site.worker(16, RESPONSE_TIMEOUT_S="3")
    wait_until(lambda: answered(site))
    os.kill(worker.pid, signal.SIGSTOP)  # with a batch, which the server waits for
    os.kill(server.pid, signal.SIGSTOP)
    time.sleep(3.2)
    os.kill(server.pid, signal.SIGCONT)
    time.sleep(0.2)
    os.kill(worker.pid, signal.SIGCONT)
    answers_more(site, 200)
    assert worker.poll() is None
    found = site.ended(server)
    assert (found["wrong"], found[INTERNAL]) == ("0", "0")


def test_who_is_not_loaded_any_more_keeps_no_memory_and_gets_it_again(site):
    site.worker(16)
    server = site.serve(1, 0, 16)
    wait_until(lambda: answered(site))
    for _ in range(2):
        worker = site.worker(16, model="n")  # which the server has not loaded
        wait_until(lambda: said(site, "n", "workers"))
        before = descriptors(server)
        os.kill(worker.pid, signal.SIGKILL)
        # Three of the worker, seven of the memory.
        wait_until(lambda before=before: descriptors(server) <= before - 10)
    assert said(site, "m", "entries")
    found = site.ended(server)
    assert (found["wrong"], found[INTERNAL]) == ("0", "0")


def said(site, model, what):
    """What the backend says of a model; 0: nothing."""
    with site.backend() as backend:
        return sum(each[what] for each in backend.functions() if each["model"] == model)


def workers(site):
    with site.backend() as backend:
        return sum(len(each["pids"]) for each in backend.functions())


def descriptors(server):
    return len(os.listdir(f"/proc/{server.pid}/fd"))


def test_a_host_that_comes_when_no_descriptor_is_free_is_heard_later(site):
    server = site.serve(1, 0, 16)
    site.worker(16)
    wait_until(lambda: answered(site))  # a model that is loaded without a descriptor is refused
    usual = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (3, usual[1]))
    time.sleep(0.3)  # the last look for who comes may have had a descriptor ready
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as early:
        early.connect(str(site.at))
        early.settimeout(PATIENCE_S)
        early.send(layout.pack("hello", kind=Kind.HELLO))
        assert not select.select([early], [], [], 0.3)[0]
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, usual)
        assert layout.unpack("hello", early.recv(1 << 16))["kind"] == Kind.HELLO
    site.worker(16)
    wait_until(lambda: workers(site) == 2)
    answers_more(site, 0)
    assert site.ended(server)["wrong"] == "0"


def test_models_take_turns_where_the_control_page_asks_for_it(site, tmp_path):
    """Also when one of their workers is killed, and again when nobody asks for it any more."""
    page, lock = ServerPage(tmp_path / "page", os.getpid(), ""), tmp_path / "lock"
    lock.touch()
    page.page.write_turns(Order.CONCURRENT, Order.CONCURRENT, True)
    server = site.serve(6, 0, 16, FAKE_MODELS="2", cancels=20)
    with site.backend() as backend:
        backend.hold_on(page.page.descriptor)
    killed, _ = (site.worker(16, model=model, lock=[lock]) for model in "mn")
    wait_until(lambda: answered(site) > 500)
    os.kill(killed.pid, signal.SIGKILL)
    site.worker(16, model="m", lock=[lock])
    answers_more(site, 500)
    assert lock.read_text() == ""
    with site.backend() as backend:
        assert min(each["answered"] for each in backend.functions()) > 100
    page.page.write_turns(Order.CONCURRENT, Order.CONCURRENT, False)
    wait_until(lock.read_text)  # they run at once
    found = site.ended(server)
    assert (found["wrong"], found[INTERNAL]) == ("0", "0")
    page.close()


def test_the_backend_serves_on_without_its_host_and_takes_workers_of_the_next(site):
    first = site.worker(16)
    server = site.serve(4, 0, 16)
    wait_until(lambda: answered(site) > 500)
    site.reception.close()
    answers_more(site, 500)
    site.receive()
    second = site.worker(16)
    with site.backend() as backend:
        wait_until(lambda: second.pid in backend.functions()[0]["pids"])
        assert backend.drain("m", 1, first.pid)
        assert not backend.drain("m", 1, os.getpid())
    first.wait(PATIENCE_S)  # it was told that it may leave
    found = site.ended(server)
    assert (found["wrong"], found[INTERNAL]) == ("0", "0")
    assert count(found) > 1000


def test_strict_requests_hold_where_their_workers_run_on_one_page_after_another(site, tmp_path):
    """Each host has a page of its own; that of one that is gone is not written any more."""
    pages = [ServerPage(tmp_path / str(i), os.getpid(), "") for i in range(2)]
    site.worker(16)
    server = site.serve(4, 0, 16)
    for page in pages:
        with site.backend() as backend:
            backend.hold_on(page.page.descriptor)
        wait_until(lambda page=page: held(page) == tensor_worker.SLICES)
        now_ns = time.monotonic_ns()
        assert holds.holding_models(page.page, now_ns) in (0, 1 << tensor_worker.SLOT)
        assert held(page) in (0, tensor_worker.SLICES)
    first = pages[0].page.words[: RUNNERS_OFFSET // 8].tobytes()
    assert held(pages[0]) == 0
    answers_more(site, 200)
    assert pages[0].page.words[: RUNNERS_OFFSET // 8].tobytes() == first
    found = site.ended(server)
    assert (found["wrong"], found[INTERNAL]) == ("0", "0")
    for page in pages:
        page.close()


def held(page):
    return holds.held(page.page, EVERY, time.monotonic_ns())


def test_a_worker_whose_host_keeps_its_connection_is_one_and_leaves_nothing(site, tmp_path):
    """A host that has not heard that it is there hands it over again."""
    listener = listen(tmp_path / "hand")
    listener.setblocking(True)
    worker = site.worker(16, at=tmp_path / "hand")
    connection, _ = listener.accept()
    attach = Attach.from_json(receive(connection)[0])
    server = site.serve(1, 0, 16)
    with site.backend() as backend:
        backend.set_policy("m", 1, Policy())
        before = watched(server)
        numbers = [backend.attach(attach, connection, 1e12) for _ in range(2)]
        assert numbers == [0, 0]
        wait_until(lambda: backend.functions()[0]["loaded"])
        assert backend.functions()[0]["workers"] == 1
        os.kill(worker.pid, signal.SIGKILL)
        wait_until(lambda: not backend.functions()[0]["workers"])
        assert watched(server) == before
    for each in (connection, listener):
        each.close()


def watched(server):
    """How many descriptors the thread of the backend waits for."""
    return sum(
        each.read_text().count("tfd:") for each in Path(f"/proc/{server.pid}/fdinfo").iterdir()
    )


def test_a_host_that_says_or_asks_more_than_others_harms_nobody(site):
    server = site.serve(1, 0, 16)
    with site.backend() as backend:
        backend.functions()  # an answer: this connection is among the descriptors
        before = os.listdir(f"/proc/{server.pid}/fd")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as rude:
            rude.connect(str(site.at))
            socket.send_fds(rude, [b"x" * 8], [0] * 70)
            assert rude.recv(1 << 16) == b""
        wait_until(lambda: os.listdir(f"/proc/{server.pid}/fd") == before)
    site.worker(16)
    wait_until(lambda: answered(site))
    asks = 90
    with site.backend() as backend:  # it reads when it has asked for more than fits in between
        for _ in range(asks):
            backend._socket.send(layout.pack("list", kind=Kind.LIST))
        for _ in range(asks):
            assert layout.unpack("reply", backend._socket.recv(1 << 16))["number"] == 1
            assert layout.unpack("state", backend._socket.recv(1 << 16))["model"] == "m"
    assert site.ended(server)["wrong"] == "0"


def test_inputs_in_memory_of_a_gpu_are_refused(site):
    site.worker(16)
    found = site.ended(site.serve(2, 30, 16, FAKE_GPU="1"))
    assert (found[UNSUPPORTED], found["wrong"]) == ("60", "0")


def test_a_library_that_is_built_is_not_built_again():
    built = build.ensure().stat()
    assert build.ensure().stat().st_mtime_ns == built.st_mtime_ns


def test_a_server_of_an_older_interface_is_refused_with_advice(site):
    found = site.ended(site.serve(1, 1, 16, FAKE_API_MINOR="18"))
    assert "use Triton 2.51" in found["refused"]


def test_a_model_whose_workers_do_not_come_does_not_load(site):
    found = site.ended(site.serve(1, 1, 16, FAKE_WAIT_S="0.05"))
    assert "no worker of m/1 has come" in found["refused"]


def test_a_wait_that_is_no_time_is_refused(site):
    found = site.ended(site.serve(1, 1, 16, FAKE_WAIT_S="soon"))
    assert "wait-s 'soon'" in found["refused"]


def test_the_host_is_told_that_the_backend_is_of_another_version(site, monkeypatch):
    site.worker(16)
    site.serve(1, 0, 16)
    site.backend().close()
    monkeypatch.setattr("shunter.plugins.triton.backend.queue_digest", lambda: 7)
    with pytest.raises(UserError, match="another version"):
        Backend(site.at)
