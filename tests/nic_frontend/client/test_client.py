"""The client against a real front end and a real worker."""

import asyncio
import contextlib
import os
import signal
import socket
import threading
import time

import numpy as np
import pytest

from shunter.batching.queue.layout import MAX_TENSORS
from shunter.nic_frontend.client import (
    AsyncClient,
    AuthenticationError,
    BadRequestError,
    BatchError,
    Client,
    ServerError,
    Session,
    TooLateError,
    UnreachableError,
)
from shunter.nic_frontend.client import exchange as exchanges
from shunter.nic_frontend.client.requests import call_queue

KEY = bytes(range(32))
SCHEMES = ["udp", "tcp", "unix"]
LONG = 30


def x(*values):
    return np.array(values, np.float32)


def large(inputs, outputs):
    outputs[0].copy_(inputs[0] + 1)


@pytest.fixture(params=[None, KEY], ids=["open", "keyed"])
def service(request, make_service, double):
    made = make_service(key=request.param)
    made.key = request.param
    made.serve("double", **double)
    return made


@pytest.mark.parametrize("scheme", SCHEMES)
def test_an_array_goes_in_and_an_array_comes_out(service, scheme):
    with Client(service.url(scheme), key=service.key, timeout_s=LONG) as client:
        assert client.infer("double", x(1, 2, 3)).tolist() == [2, 4, 6]
        many = client.infer_many("double", [x(i, 0, 0) for i in range(300)])
        assert [each[0] for each in many] == [2 * i for i in range(300)]
        assert client.infer_many("double", []) == []


PROTECTED = {"crc": {"crc": True}, "crc and key": {"crc": True, "key": KEY}}
PROTECTED |= {"encrypted": {"encrypt": True, "key": KEY}}


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("settings", PROTECTED.values(), ids=PROTECTED)
def test_payloads_may_be_protected(make_service, scheme, settings):
    service = make_service(key=settings.get("key"))
    shape = [("float32", (300, 301))]
    service.serve("large", shape, shape, large)
    arrays = [np.full((300, 301), i, np.float32) for i in range(10)]
    with Client(service.url(scheme), timeout_s=LONG, **settings) as client:
        found = client.infer_many("large", arrays)
        assert all((each == i + 1).all() for i, each in enumerate(found))
        assert client.model("large")._exchange.core.protect

    async def main():
        async with AsyncClient(service.url(scheme), timeout_s=LONG, **settings) as client:
            found = await client.infer("large", arrays[0])
            assert (found == 1).all()

    asyncio.run(main())


def test_encryption_is_had_or_refused(make_service, double):
    service = make_service(key=KEY, encrypt=True)
    service.serve("double", **double)
    with pytest.raises(AuthenticationError, match="encrypted"):
        Session(service.url(), "double", key=KEY, timeout_s=LONG)
    with pytest.raises(ValueError, match="key"):
        Session(service.url(), "double", encrypt=True)
    with Session(service.url(), "double", key=KEY, encrypt=True, timeout_s=LONG) as session:
        assert session.infer([x(1, 2, 3)])[0].tolist() == [2, 4, 6]


def test_a_server_that_cannot_encrypt_says_so(make_service, double):
    service = make_service()
    service.serve("double", **double)
    with pytest.raises(AuthenticationError, match="no keys"):
        Session(service.url(), "double", key=KEY, encrypt=True, timeout_s=LONG)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_large_tensors_and_several_of_them(make_service, scheme):
    service = make_service()
    shape = (300, 500)

    def both(inputs, outputs):
        outputs[0].copy_(inputs[0] + 1)
        outputs[1].copy_(inputs[1].sum(dim=(1, 2)))

    inputs = [("float32", shape), ("int64", (2, 3))]
    service.serve("both", inputs, [("float32", shape), ("int64", ())], both)
    rng = np.random.default_rng(0)
    requests = [(rng.random(shape, np.float32), np.full((2, 3), i)) for i in range(40)]
    with Client(service.url(scheme), timeout_s=LONG) as client:
        answers = client.infer_many("both", requests)
    for (first, second), (plus, total) in zip(requests, answers, strict=True):
        assert np.array_equal(plus, first + 1)
        assert total == second.sum()


def test_answers_go_where_the_caller_wants_them(make_service, double):
    service = make_service()
    service.serve("double", **double)
    out = np.zeros((2, 3), np.float32)
    with Session(service.url(), "double", timeout_s=LONG) as session:
        [found] = session.infer([x(1, 2, 3)], out=[out[1]])
        assert found is not None and out.tolist() == [[0, 0, 0], [2, 4, 6]]
        for wrong in ([out], [out[:, 0]], [], [out[0].astype(np.float64)]):
            with pytest.raises(BadRequestError):
                session.infer([x(1, 2, 3)], out=wrong)


def test_an_array_need_not_be_contiguous(make_service, double):
    service = make_service()
    service.serve("double", **double)
    with Client(service.url(), timeout_s=LONG) as client:
        columns = np.arange(9, dtype=np.float32).reshape(3, 3)
        assert client.infer("double", columns[:, 1]).tolist() == [2, 8, 14]


@pytest.mark.parametrize("host", ["::1", "localhost"])
@pytest.mark.parametrize("scheme", ["udp", "tcp"])
def test_other_hosts(make_service, double, host, scheme):
    service = make_service(host="::1" if ":" in host else "127.0.0.1")
    service.serve("double", **double)
    url = service.url(scheme).replace("127.0.0.1", host)
    with Client(url, timeout_s=LONG) as client:
        assert client.infer("double", x(1, 2, 3)).tolist() == [2, 4, 6]


def test_threads_share_a_client(make_service, double):
    service = make_service()
    service.serve("double", **double)
    found, sessions = {}, set()
    with Client(service.url(), timeout_s=LONG) as client:

        def ask(number):
            sessions.add(client.model("double"))
            answers = [client.infer("double", x(number, i, 0)).tolist() for i in range(50)]
            found[number] = answers == [[2 * number, 2 * i, 0] for i in range(50)]

        threads = [threading.Thread(target=ask, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == dict.fromkeys(range(4), True)
    assert len(sessions) == 4


# ---- whose fault it is


def test_wrong_tensors_are_the_callers_fault(service):
    with Client(service.url(), key=service.key, timeout_s=LONG) as client:
        for wrong in (x(1), [x(1, 2, 3)] * 2, np.zeros(3), [], np.zeros((3, 1), np.float32)):
            with pytest.raises(BadRequestError):
                client.infer("double", wrong)
        with pytest.raises(TypeError):
            client.infer("double", x(1, 2, 3), deadline=3)
        assert client.infer("double", x(1, 2, 3)).tolist() == [2, 4, 6]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_an_unknown_model_is_the_callers_fault(service, scheme):
    with Client(service.url(scheme), key=service.key, timeout_s=LONG) as client:
        for name, version in (("triple", ""), ("double", "2"), ("m" * 200, "")):
            with pytest.raises(BadRequestError):
                client.infer(name, x(1, 2, 3), version=version)
        assert client.infer("double", x(1, 2, 3), version="1").tolist() == [2, 4, 6]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("key", [None, bytes(32)])
def test_a_wrong_key_is_said_at_once(make_service, double, scheme, key):
    service = make_service(key=KEY)
    service.serve("double", **double)
    with pytest.raises(AuthenticationError):
        Session(service.url(scheme), "double", key=key, timeout_s=LONG)


def test_a_key_that_the_server_does_not_have_is_said(make_service, double):
    service = make_service()
    service.serve("double", **double)
    with pytest.raises(AuthenticationError, match="no key"):
        Session(service.url(), "double", key=KEY, timeout_s=LONG)


def test_a_key_may_stand_in_a_file(make_service, double, tmp_path):
    service = make_service(key=KEY)
    service.serve("double", **double)
    (tmp_path / "key").write_bytes(KEY)
    with Client(service.url(), key=tmp_path / "key", timeout_s=LONG) as client:
        assert client.infer("double", x(1, 2, 3)).tolist() == [2, 4, 6]
    (tmp_path / "short").write_bytes(b"1")
    for name in ("short", "none"):
        with pytest.raises(ValueError, match=name):
            Client(service.url(), key=str(tmp_path / name))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_handler_that_fails_is_the_servers_fault(make_service, scheme):
    def fail(inputs, outputs):
        raise RuntimeError

    service = make_service()
    service.serve("fail", [("float32", (3,))], [("float32", (3,))], fail)
    with Client(service.url(scheme), timeout_s=LONG) as client:
        with pytest.raises(ServerError) as caught:
            client.infer("fail", x(1, 2, 3))
        assert caught.value.status == 500


@pytest.mark.parametrize("url", ["udp://127.0.0.1:9", "tcp://127.0.0.1:9", "unix:///none.sock"])
def test_where_nobody_is_nothing_is_reached(url):
    with pytest.raises(UnreachableError, match=r"refused|No such file"):
        Session(url, "double", timeout_s=0.2)


def test_an_unknown_host_is_not_reached():
    with pytest.raises(UnreachableError):
        Session("udp://no.such.host.invalid:1", "double", timeout_s=0.1)


@pytest.mark.parametrize(
    "url", ["http://a:1", "udp://a", "udp://:1", "unix://", "unix://host/path", "a:1", "udp://a:b"]
)
def test_a_wrong_url_is_a_value_error(url):
    with pytest.raises(ValueError, match=r".+"):
        Client(url)


# ---- time


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_server_that_is_there_but_slow_is_too_late(gated, scheme):
    with Session(gated.url(scheme), "gated", timeout_s=LONG) as session:
        with pytest.raises(TooLateError, match="did not answer"):
            session.infer([x(1, 2, 3)], timeout_s=0.5)
        gated.gate.set()
        assert session.infer([x(4, 5, 6)])[0].tolist() == [4, 5, 6]


def test_what_was_given_up_does_not_run(gated):
    with Session(gated.url(), "gated", timeout_s=LONG) as session:
        late = session.infer_many([[x(i, 0, 0)] for i in range(1, 6)], timeout_s=0.5)
        assert [type(each) for each in late] == [TooLateError] * 5
        gated.gate.set()
        session.infer([x(9, 0, 0)])
    # One runs and one is with the worker: what waited was taken back.
    assert gated.ran[-1] == 9 and set(gated.ran) <= {1, 2, 9}


def test_a_deadline_is_the_servers_to_keep(gated):
    with Client(gated.url(), timeout_s=LONG) as client:
        # One runs and one is with the worker, so that the next waits in the queue.
        first = threading.Thread(
            target=client.infer_many, args=("gated", [x(1, 0, 0), x(2, 0, 0)])
        )
        first.start()
        assert gated.begun.wait(60)
        with pytest.raises(TooLateError, match="deadline"):
            client.infer("gated", x(3, 0, 0), deadline_ms=100)
        gated.gate.set()
        first.join()
        assert client.infer("gated", x(9, 0, 0), deadline_ms=60_000)[0] == 9
    assert sorted(gated.ran) == [1, 2, 9]


def test_a_silent_server_is_not_reached(gated):
    session = Session(gated.url(), "gated", timeout_s=LONG)
    gated.gate.set()
    gated.stop()
    with pytest.raises((UnreachableError, ServerError)):
        session.infer([x(1, 2, 3)], timeout_s=0.3)
    session.close()
    with pytest.raises(ValueError, match="closed"):
        session.infer([x(1, 2, 3)])


def test_a_question_that_gets_lost_is_asked_again(make_service, double, monkeypatch):
    service = make_service()
    service.serve("double", **double)
    with Session(service.url(), "double", timeout_s=LONG) as session:
        core, asked = session._exchange.core, []
        ask = core.ask
        monkeypatch.setattr(core, "ask", lambda: asked.append(0) or (len(asked) > 1 and ask()))
        session.ping()
        assert len(asked) > 1


def test_ctrl_c_takes_the_request_back(gated, monkeypatch):
    with Session(gated.url(), "gated", timeout_s=LONG) as session:
        step = session._step

        def interrupted():
            if gated.begun.is_set():
                raise KeyboardInterrupt
            step()

        monkeypatch.setattr(session, "_step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            session.infer([x(1, 2, 3)])
        monkeypatch.undo()
        gated.gate.set()
        assert session.infer([x(4, 5, 6)])[0].tolist() == [4, 5, 6]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_child_of_the_process_has_sessions_of_its_own(make_service, double, scheme):
    service = make_service(key=KEY)
    service.serve("double", **double)
    ours, theirs = socket.socketpair()
    with ours, theirs, Client(service.url(scheme), timeout_s=LONG, key=KEY) as client:
        assert client.infer("double", x(1, 2, 3)).tolist() == [2, 4, 6]
        if not (child := os.fork()):
            with contextlib.suppress(BaseException):
                ours.recv(1)
                found = [client.infer("double", x(i, 0, 0))[0] for i in range(30)]
                theirs_are_right = found == [2 * i for i in range(30)]
                os._exit(0 if theirs_are_right else 1)
            os._exit(2)
        theirs.send(b"x")
        found = [client.infer("double", x(i, 0, 0))[0] for i in range(30)]
        assert found == [2 * i for i in range(30)]
        assert os.waitpid(child, 0)[1] == 0
        assert client.infer("double", x(1, 2, 3)).tolist() == [2, 4, 6]


def test_a_child_waits_for_no_thread_of_its_parent(make_service, double):
    service = make_service()
    service.serve("double", **double)
    with Client([service.url(), service.url("unix")], timeout_s=LONG) as client:
        client._balancer.pick(0)
        with client._lock:  # as another thread that picks a server
            child = os.fork()
            if not child:
                with contextlib.suppress(BaseException):
                    signal.alarm(LONG)
                    is_right = client.infer("double", x(1, 2, 3)).tolist() == [2, 4, 6]
                    is_counted = any(each.outstanding for each in client._balancer.endpoints)
                    os._exit(0 if is_right and not is_counted else 1)
                os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        assert sum(each.outstanding for each in client._balancer.endpoints) == 1


# ---- a front end that ends and comes again


@pytest.mark.parametrize("scheme", SCHEMES)
def test_what_may_run_twice_survives_a_restart(gated, scheme):
    with Session(gated.url(scheme), "gated", timeout_s=LONG) as session:
        restarted = threading.Thread(target=_restart, args=(gated, session))
        restarted.start()
        found = session.infer_many([[x(i, 0, 0)] for i in range(4)], idempotent=True)
        restarted.join()
        assert [each[0][0] for each in found] == [0, 1, 2, 3]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_of_the_rest_it_is_said_that_nobody_knows(gated, scheme):
    with Session(gated.url(scheme), "gated", timeout_s=LONG) as session:
        restarted = threading.Thread(target=_restart, args=(gated, session))
        restarted.start()
        found = session.infer_many([[x(i, 0, 0)] for i in range(4)])
        restarted.join()
        lost = [each for each in found if isinstance(each, ServerError)]
        assert lost and all("not known" in str(each) for each in lost)
        answers = {each[0][0] for each in found if isinstance(each, list)}  # a worker said them
        assert len(lost) + len(answers) == 4 and answers <= {0, 1, 2, 3}
        assert session.infer([x(4, 5, 6)])[0].tolist() == [4, 5, 6]


def _restart(gated, session):
    assert gated.begun.wait(60)
    gated.until(lambda: len(session._exchange.running) == 4)
    gated.stop()
    gated.gate.set()
    gated.start()
    gated.wait_for("gated")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_load_goes_through_front_ends_that_end_in_order(
    make_service, double, scheme, monkeypatch
):
    monkeypatch.setattr(call_queue, "UNSERVED_NS", LONG * 10**9)  # however slow the machine is
    service = make_service()
    service.serve("double", **double)
    wrong, over, asked = [], threading.Event(), threading.Event()

    def ask(session):
        with session:
            while not over.is_set():
                requests = [[x(i, 0, 0)] for i in range(20)]
                found = session.infer_many(requests, idempotent=True)
                wrong.extend(i for i in range(20) if found[i][0][0] != 2 * i)
                asked.set()

    sessions = [Session(service.url(scheme), "double", timeout_s=LONG) for _ in range(2)]
    threads = [threading.Thread(target=ask, args=(each,)) for each in sessions]
    for thread in threads:
        thread.start()
    for _ in range(2):
        assert asked.wait(60)
        service.stop(gently=True)
        service.start()
        service.wait_for("double")
        asked.clear()
    assert asked.wait(60)
    over.set()
    for thread in threads:
        thread.join(60)
    assert wrong == []


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_session_that_was_idle_during_a_restart_is_opened_again(
    make_service, double, scheme, monkeypatch
):
    monkeypatch.setattr(exchanges, "CHECK_NS", 0)  # any pause is a long one
    service = make_service()
    service.serve("double", **double)
    with Client(service.url(scheme), timeout_s=LONG) as client:
        client.infer("double", x(1, 2, 3))
        service.stop()
        service.start()
        service.wait_for("double")
        assert client.infer("double", x(1, 2, 3)).tolist() == [2, 4, 6]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_session_that_the_server_has_ended_is_opened_again(
    make_service, double, scheme, monkeypatch
):
    service = make_service()
    service.serve("double", **double)
    with Client(service.url(scheme), timeout_s=LONG) as client:
        session = client.model("double")
        before = session._exchange.core
        for name in ("CHECK_NS", "IDLE_NS"):
            monkeypatch.setattr(exchanges, name, 0)
        assert client.infer("double", x(1, 2, 3)).tolist() == [2, 4, 6]
        assert session._exchange.core is not before


def test_a_session_with_many_large_descriptions_survives_a_restart(make_service):
    service, shape = make_service(), (1,) * 30 + (3,)
    many = [("float32", shape)] * MAX_TENSORS

    def infer(inputs, outputs):
        for source, target in zip(inputs, outputs, strict=True):
            target.copy_(source + 1)

    service.serve("many", many, many, infer)
    arrays = [np.full(shape, i, np.float32) for i in range(MAX_TENSORS)]
    with Session(service.url(), "many", timeout_s=LONG) as session:
        session.infer(arrays)
        service.stop()
        service.start()
        service.wait_for("many")
        found = session.infer(arrays, idempotent=True)
        assert [y.flat[0] for y in found] == list(range(1, MAX_TENSORS + 1))


def test_a_model_with_other_tensors_after_a_restart_is_said(make_service, double):
    service = make_service()
    worker = service.serve("double", **double)
    with Session(service.url(), "double", timeout_s=LONG) as session:
        worker.close()
        service._workers.clear()
        service.stop()
        service.start()
        service.serve("double", [("float32", (4,))], [("float32", (4,))], double["infer"])
        with pytest.raises((BadRequestError, ServerError)):
            session.infer([x(1, 2, 3)], idempotent=True)
        four = np.ones(4, np.float32)
        assert session.infer([four])[0].tolist() == [2, 2, 2, 2]
        assert [each.shape for each in (*session.inputs, *session.outputs)] == [(4,)] * 2


# ---- room


def test_more_requests_than_the_server_has_room_for(make_service, double):
    service = make_service(queue_bytes=1024 * 24)  # 12 bytes each way need as many entries
    service.serve("double", **double, batch=2)
    entries = service.front_end.functions.all()[0].queue.entries
    count = 3 * entries
    urls = [service.url(scheme) for scheme in SCHEMES]
    found = {}

    def ask(url):
        with Session(url, "double", timeout_s=LONG) as session:
            answers = session.infer_many([[x(i, 0, 0)] for i in range(count)])
            found[url] = [answer[0][0] for answer in answers] == [2 * i for i in range(count)]

    threads = [threading.Thread(target=ask, args=(url,)) for url in urls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == dict.fromkeys(urls, True)


def test_a_worker_says_why_it_is_refused_and_the_front_end_says_it_once(
    make_service, double, caplog
):
    service = make_service(queue_bytes=1)
    service.wait_for = lambda _: service.until(lambda: "AttachError" in caplog.text)
    service.serve("double", **double)
    told = [record for record in caplog.records if "queue_mb allows 0" in record.message]
    levels = sorted((record.name, record.levelname) for record in told)
    assert levels == [("shunter.front_end_link", "WARNING"), ("shunter.nic", "WARNING")]


def test_both_directions_of_a_stream_may_be_full(make_service):
    service = make_service()
    shape = (1 << 20,)
    service.serve("large", [("float32", shape)], [("float32", shape)], large, batch=4)
    with Session(service.url("unix"), "large", timeout_s=60) as session:
        array = np.ones(shape, np.float32)
        found = session.infer_many([[array]] * 12)
        assert all(np.array_equal(each[0], array + 1) for each in found)


def test_a_spinning_client(make_service, double):
    service = make_service()
    service.serve("double", **double)
    with Session(service.url(), "double", spin=True, timeout_s=LONG) as session:
        assert session.infer([x(1, 2, 3)])[0].tolist() == [2, 4, 6]


# ---- many at once


def sums_positive(inputs, outputs):
    if (inputs[0] < 0).any():
        raise ValueError("negative")
    outputs[0].copy_(inputs[0].sum(dim=1))
    outputs[1].copy_(inputs[0] + inputs[1])


@pytest.fixture
def sums(make_service):
    """A model of two tensors that fails for some requests."""
    service = make_service()
    inputs = [("float32", (3,)), ("float32", ())]
    service.serve("sums", inputs, [("float32", ()), ("float32", (3,))], sums_positive, batch=1)
    return service


def test_each_of_many_has_its_answer_or_its_error(sums):
    requests = [[x(i, 1, 1), np.float32(2)[...]] for i in (0, -1, 2)] + [[x(1), x(2)], [x(3)]]

    def check(found):
        kinds = [type(each) for each in found]
        assert kinds == [list, ServerError, list, BadRequestError, BadRequestError]
        assert found[2][0] == 4 and found[2][1].tolist() == [4, 3, 3]

    async def main():
        async with AsyncClient(sums.url(), timeout_s=LONG) as client:
            check(await client.infer_many("sums", requests))

    with Client(sums.url(), timeout_s=LONG) as client:
        check(client.infer_many("sums", requests))
    asyncio.run(main())


def test_a_batch_is_cut_and_its_answers_are_one_array_again(sums):
    first = np.arange(30, dtype=np.float32).reshape(10, 3)
    second = np.arange(10, dtype=np.float32)

    def check(found):
        assert found[0].tolist() == first.sum(axis=1).tolist()
        assert np.array_equal(found[1], first + second[:, None])

    def check_error(error):
        assert sorted(error.errors) == [4] and isinstance(error.errors[4], ServerError)
        whole = np.delete(error.outputs[1], 4, 0)
        assert np.array_equal(whole, np.delete(first + second[:, None], 4, 0))

    async def main():
        async with AsyncClient(sums.url(), timeout_s=LONG) as client:
            check(await client.infer_batch("sums", [first, second]))

    with Client(sums.url(), timeout_s=LONG) as client:
        check(client.infer_batch("sums", [first, second]))
        check(client.infer_batch("sums", [np.asfortranarray(first), second]))
        assert client.infer_batch("sums", [first[:0], second[:0]])[1].shape == (0, 3)
        asyncio.run(main())
        first = first.copy()
        first[4] = -100
        with pytest.raises(BatchError, match="request 4") as caught:
            client.infer_batch("sums", [first, second])
        check_error(caught.value)
        for wrong in ([first], [first, second[:3]], [first[:, :2], second], [first, first]):
            with pytest.raises(BadRequestError):
                client.infer_batch("sums", wrong)


# ---- several servers


@pytest.fixture
def pair(make_service, tmp_path, gate=threading.Event):
    """Two services of the same model, which says who ran."""
    made = []
    for number, name in enumerate(("first", "second")):
        (tmp_path / name).mkdir()
        service = make_service(folder=tmp_path / name)
        service.gate, service.begun = gate(), gate()
        service.gate.set()

        def infer(inputs, outputs, service=service, number=number):
            service.begun.set()
            assert service.gate.wait(60)
            outputs[0].copy_(inputs[0])
            outputs[0][:, 1] = number

        service.serve("named", [("float32", (3,))], [("float32", (3,))], infer, batch=1)
        made.append(service)
    yield made
    for service in made:
        service.gate.set()


def who(answer):
    return int(answer[1])


@pytest.mark.parametrize("scheme", SCHEMES)
def test_requests_spread_and_go_on_when_a_server_ends_and_comes_back(pair, scheme):
    urls = [each.url(scheme) for each in pair]
    with Client(urls, timeout_s=LONG) as client:
        assert {who(client.infer("named", x(i, 0, 0))) for i in range(100)} == {0, 1}
        pair[0].stop()
        found = [client.infer("named", x(i, 0, 0), idempotent=True) for i in range(20)]
        assert [each[0] for each in found] == list(range(20)) and {*map(who, found)} == {1}
        pair[0].start()
        pair[0].wait_for("named")
        pair[0].until(lambda: who(client.infer("named", x(1, 2, 3), idempotent=True)) == 0)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_calls_of_one_loop_spread_and_what_may_run_twice_is_asked_elsewhere(pair, scheme):
    pair[0].gate.clear()

    def stop(loop):
        assert pair[0].begun.wait(60)
        pair[0].stop()
        pair[0].gate.set()

    async def main():
        loop = asyncio.get_running_loop()
        async with AsyncClient([each.url(scheme) for each in pair], timeout_s=LONG) as client:
            await asyncio.gather(*(client.model("named", "", i) for i in (0, 1)))
            stopped = loop.run_in_executor(None, stop, loop)
            again = [client.infer("named", x(i, 0, 0), idempotent=True) for i in range(20)]
            once = [client.infer("named", x(i, 0, 0)) for i in range(20)]
            found = await asyncio.gather(*again, *once, return_exceptions=True)
            await stopped
        assert [each[0] for each in found[:20]] == list(range(20))
        for i, each in enumerate(found[20:]):  # those that had not left were asked elsewhere
            if isinstance(each, Exception):
                assert isinstance(each, ServerError | UnreachableError) and each.may_have_run
            else:
                assert each[0] == i

    asyncio.run(main())


@pytest.mark.parametrize("scheme", ["udp", "tcp"])
def test_where_one_is_not_there_the_other_is_asked_at_once(pair, scheme):
    nobody = f"{scheme}://127.0.0.1:9"
    with Client([nobody, pair[1].url(scheme)], timeout_s=LONG) as client:
        for i in range(10):
            assert client.infer("named", x(i, 0, 0))[0] == i
    with Client([nobody, nobody], timeout_s=LONG) as client:
        with pytest.raises(UnreachableError, match="refused"):
            client.infer("named", x(1, 2, 3))
        assert all(isinstance(e, UnreachableError) for e in client.infer_many("named", [x(1)] * 2))

    async def main():
        async with AsyncClient([nobody, pair[1].url(scheme)], timeout_s=10_000) as client:
            found = await asyncio.gather(*(client.infer("named", x(i, 0, 0)) for i in range(20)))
            assert [each[0] for each in found] == list(range(20))

    asyncio.run(main())


def test_what_is_wrong_is_not_asked_twice(pair):
    with Client([each.url() for each in pair], timeout_s=LONG) as client:
        for model, array in (("named", x(1)), ("none", x(1, 2, 3))):
            with pytest.raises(BadRequestError):
                client.infer(model, array)
    with pytest.raises(ValueError, match="no URL"):
        Client([])


@pytest.mark.parametrize("size", [3, 40_000])
def test_answers_of_calls_that_took_long_are_the_callers(make_service, size):
    """Whether the answer came at once or not, the next one does not write to it."""
    service = make_service()

    def slow(inputs, outputs):
        time.sleep(0.05 if inputs[0][0, 0] % 2 else 0)
        outputs[0].copy_(inputs[0])

    service.serve("slow", [("float32", (size,))], [("float32", (size,))], slow)
    with Session(service.url(), "slow", timeout_s=LONG) as session:
        found = [session.infer([np.full(size, i, np.float32)])[0] for i in range(6)]
    assert [each.min() for each in found] == [each.max() for each in found] == list(range(6))
