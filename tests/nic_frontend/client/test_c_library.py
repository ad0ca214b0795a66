"""The client library in C: its keys, its parser, and programs that use it, under the sanitizers."""

import ctypes
import hashlib
import hmac
import importlib.util
import json
import os
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from ctypes import (
    POINTER,
    Structure,
    byref,
    c_bool,
    c_char,
    c_char_p,
    c_int,
    c_size_t,
    c_uint32,
    c_uint64,
)
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packed_worker import PackedWorker

from shunter.batching.queue.layout import MAX_TENSORS
from shunter.batching.queue.shared_memory import sealed_memory
from shunter.batching.queue.tensor_spec import TensorSpec
from shunter.nic_frontend import build, client_library
from shunter.nic_frontend.library import library
from shunter.nic_frontend.wire import keys as wire_keys
from shunter.nic_frontend.wire.header import Header, parse
from shunter.nic_frontend.wire.hello import NO_MAC, Hello, Opened, hello_ack
from shunter.nic_frontend.wire.layout import (
    WANT_SHARED_MEMORY,
    MessageType,
    Rights,
    WireStatus,
)

HERE = Path(__file__).parent
KEY = bytes(range(32))
SIZE = 70_001
LONG = 120


# ---- keys


class Secret(Structure):
    """``struct shunter_secret``."""

    _fields_ = (("bytes", c_char_p), ("length", c_size_t))


def secret_of(data):
    return byref(Secret(data, len(data)))


@given(st.binary(max_size=300), st.integers(1, 90))
def test_sha256_however_it_is_fed(built, data, step):
    found, state = library(), ctypes.create_string_buffer(256)
    digest = ctypes.create_string_buffer(32)
    found.shunter_sha256_begin(state)
    for at in range(0, len(data), step):
        found.shunter_sha256_add(state, data[at : at + step], c_size_t(len(data[at : at + step])))
    found.shunter_sha256_end(state, digest)
    assert digest.raw == hashlib.sha256(data).digest()


@given(st.binary(min_size=1, max_size=200), st.binary(max_size=200))
def test_hmac(built, key, data):
    found, state = library(), ctypes.create_string_buffer(512)
    mac = ctypes.create_string_buffer(32)
    found.shunter_hmac_begin(state, key, c_size_t(len(key)))
    found.shunter_hmac_add(state, data, c_size_t(len(data)))
    found.shunter_hmac_end(state, mac)
    assert mac.raw == hmac.digest(key, data, hashlib.sha256)


secrets = st.binary(min_size=32, max_size=100)


@given(secrets, st.binary(min_size=16, max_size=16), st.binary(min_size=16, max_size=16))
def test_the_mac_of_a_hello(built, secret, nonce, cookie):
    message = Hello(nonce, "m", "1", 1408, 64, cookie, 0, "k").message(secret)
    mac = ctypes.create_string_buffer(32)
    library().shunter_hello_mac(secret_of(secret), message[:-32], mac)
    assert mac.raw == message[-32:]


@given(
    secrets,
    st.sampled_from([b"", bytes(range(32))]),
    st.binary(min_size=16, max_size=16),
    st.binary(min_size=80, max_size=300),
)
def test_the_keys_of_a_session(built, secret, shared, cookie, opened):
    said = Hello(bytes(16), "m", "1", 1408, 64, cookie, 0, "k").message(None)[:-32]
    expected = wire_keys.session_keys(secret, shared, said, opened)
    found = ctypes.create_string_buffer(96)
    library().shunter_session_keys(
        secret_of(secret), shared or None, said, opened, c_size_t(len(opened)), found
    )
    keys = vars(expected)
    assert found.raw == b"".join(keys[name] for name in (
        "tag_to_server", "tag_to_client", "payload_to_server", "payload_to_client", "hello_ack"
    ))  # fmt: skip
    mac = ctypes.create_string_buffer(32)
    library().shunter_hello_ack_mac(found, opened[:64], mac)
    assert mac.raw == wire_keys.hello_ack_mac(expected, opened[:64])


# ---- tensors


class Tensor(Structure):
    """``struct shunter_tensor``."""

    _fields_ = (
        ("name", c_char * 128),
        ("dtype", c_char * 16),
        ("dimensions", c_uint32),
        ("shape", c_uint64 * 32),
        ("bytes", c_uint64),
    )


class Packing(Structure):
    """``struct shunter_packing``."""

    _fields_ = (
        *(("batched", c_int), ("streamed", c_int), ("rows", c_uint32)),
        *(("request_bytes", c_uint32), ("answer_bytes", c_uint32)),
    )


class Tensors(Structure):
    """``struct shunter_tensors``."""

    _fields_ = (
        ("input_count", c_uint32),
        ("output_count", c_uint32),
        ("inputs", Tensor * MAX_TENSORS),
        ("outputs", Tensor * MAX_TENSORS),
        ("packed", c_bool),
        ("packing", Packing),
    )


def parsed(text, packing=False):
    data, found = text if isinstance(text, bytes) else text.encode(), Tensors()
    parse = library().shunter_parse_tensors
    parse.restype, parse.argtypes = ctypes.c_bool, [c_char_p, c_size_t, POINTER(Tensors)]
    # Behind it is what would be taken for more of it.
    if not parse(data + b'}]},"', len(data), byref(found)):
        return None
    if packing:
        return found.packed and {name: getattr(found.packing, name) for name, _ in Packing._fields_}
    return {
        kind: [
            {
                "name": each.name.decode(),
                "dtype": each.dtype.decode(),
                "shape": list(each.shape[: each.dimensions]),
                "bytes": each.bytes,
            }
            for each in getattr(found, kind)[: getattr(found, f"{kind[:-1]}_count")]
        ]
        for kind in ("inputs", "outputs")
    }


names = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=31
)
dtypes = st.sampled_from(["bool", "int8", "uint16", "float16", "float32", "int64", "complex128"])
tensor = st.fixed_dictionaries(
    {"name": names, "dtype": dtypes, "shape": st.lists(st.integers(0, 9), max_size=9)},
    optional={"later": st.recursive(st.none() | st.booleans() | st.floats(allow_nan=False) | names,
                                    lambda each: st.lists(each) | st.dictionaries(names, each),
                                    max_leaves=5)},
)  # fmt: skip
described = st.fixed_dictionaries(
    {kind: st.lists(tensor, min_size=1, max_size=MAX_TENSORS) for kind in ("inputs", "outputs")}
)


@given(described, st.booleans(), st.sampled_from([None, 1]))
def test_a_description_is_read_as_json_reads_it(built, content, ascii_only, indent):
    found = parsed(json.dumps(content, ensure_ascii=ascii_only, indent=indent))
    for kind, tensors in content.items():
        for each in tensors:
            each.pop("later", None)
            size = np.dtype(each["dtype"]).itemsize
            each["bytes"] = int(np.prod(each["shape"], dtype=np.int64)) * size
        assert found[kind] == tensors


GOOD = (
    '{"inputs": [{"name": "x", "dtype": "int8", "shape": [1]}], '
    '"outputs": [{"name": "y", "dtype": "int8", "shape": []}]}'
)


PACKED = GOOD.replace("[1]", "[-1]").replace("int8", "bytes", 1)[:-1] + (
    ', "packed": {"batched": true, "streamed": false, "request_bytes": 100, "answer_bytes": 200, '
    '"rows": 7, "more": {}, "more than is known yet": []}, "what comes with a later one": [{}]}'
)


def test_a_packed_model_says_how_its_requests_are(built):
    form = {"batched": 1, "streamed": 0, "rows": 7, "request_bytes": 100, "answer_bytes": 200}
    assert parsed(PACKED, packing=True) == form
    [found] = parsed(PACKED)["inputs"]
    assert found == {"name": "x", "dtype": "bytes", "shape": [(1 << 64) - 1], "bytes": 0}
    assert parsed(GOOD, packing=True) is False


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("[-1]", "[-2]"), ("[-1]", "[-]"), ("true", "1"), ("true", "trues"), ("false", "fals"),
        ("[-1]", "[65536, 65536, 65536, 65536]"),
        (": 100", ": 0"), (": 7", ": -7"), ('"rows"', '"lines"'), ("packed", "packet"),
    ],
)  # fmt: skip
def test_what_is_no_packing_is_refused(built, old, new):
    assert parsed(PACKED) and parsed(PACKED.replace(old, new, 1)) is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"int8"', '"int9"'), ('"int8"', "8"), ("[1]", "[-1]"), ("[1]", "[1.5]"), ("[1]", "[1"),
        ("[1]", "[5000000000]"), ("[1]", "[65536, 65536]"), ("[1]", f"[{'1,' * 32}1]"),
        ('"x"', f'"{"x" * 128}"'), ('"x"', '"\\u0000"'), ('"x"', '"\\ud800"'), ('"x"', '"\\x"'),
        ("[{", "[{}, {"), ('"inputs"', '"input"'), ("]}", "]}}"), ("}]}", "}]"), ("{", ""),
        ('"shape": [1]', '"size": 1'), ('"name"', '"a": [[[[[[[[[[[[[[[[[[[[[]]]]]]]]]'),
    ],
)  # fmt: skip
def test_what_is_no_description_is_refused(built, old, new):
    assert parsed(GOOD) and parsed(GOOD.replace(old, new, 1)) is None


@given(st.integers(0, len(GOOD)), st.integers(0, len(GOOD)), st.binary(max_size=8))
def test_any_bytes_are_read_or_refused(built, begin, length, between):
    data = GOOD.encode()
    parsed(data[:begin] + between + data[begin + length :])


# ---- programs


def sanitizer():
    return [*build.SANITIZERS, "-O1"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The library, installed, under the sanitizers."""
    try:
        return client_library.install(tmp_path_factory.mktemp("prefix"), more=sanitizer())
    except build.BuildError as error:
        if "asan" in str(error) or "sanitize" in str(error):
            pytest.skip(f"no sanitizers: {error}")
        raise


def compiled(installed, source, folder, *more):
    """A program that is linked with the static library, by what pkg-config would say."""
    said = (installed / "lib/pkgconfig/shunter_client.pc").read_text()
    assert f"prefix={installed}\n" in said and "-lshunter_client" in said
    program = folder / source.stem
    flags = ["-std=c11", "-g", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", *sanitizer()]
    archive = installed / "lib/libshunter_client.a"
    command = [*build.compiler(), *flags, f"-I{installed}/include", *more, source, archive]
    subprocess.run([*command, "-pthread", "-ldl", "-o", program], check=True)
    return program


@pytest.fixture(scope="module")
def user(installed, tmp_path_factory):
    """Runs use_library.c; its status and what it said."""
    program = compiled(installed, HERE / "use_library.c", tmp_path_factory.mktemp("program"))

    def run(url, model="plus", protection=0, keyed=0, shared=-1):
        command = [program, url, model, str(protection), str(keyed), str(shared)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LONG, check=False)
        assert done.returncode in (0, 1), done.stderr
        assert not done.stderr
        return done.returncode, done.stdout

    return run


def plus_one(inputs, outputs):
    outputs[0].copy_(inputs[0] + 1)


@pytest.fixture
def serve(make_service):
    """Makes a service with a model that adds one."""

    def make(size=SIZE, **settings):
        service = make_service(**settings)
        service.serve("plus", [("uint8", (size,))], [("uint8", (size,))], plus_one)
        return service

    return make


@pytest.mark.parametrize("scheme", ["udp", "tcp", "unix", "shunter"])
@pytest.mark.parametrize(("protection", "keyed"), [(0, 0), (1, 0), (0, 1), (2, 1)])
def test_a_program_asks_many_times(serve, user, scheme, protection, keyed):
    service = serve(key=KEY if keyed else None)
    shared = int(scheme == "unix" and not protection)
    assert user(service.url(scheme), "plus", protection, keyed, shared) == (0, "")


def test_a_program_asks_what_is_small_enough_to_go_with_others(serve, user):
    assert user(serve(size=100).url(), shared=0) == (0, "")


def unsealed(size):
    descriptor = os.memfd_create("test")
    os.truncate(descriptor, size)
    return descriptor


@pytest.mark.parametrize(
    "memories",
    [[], [lambda: sealed_memory("test", 64 * 128 - 1)], [lambda: unsealed(1 << 20)],
     [lambda: os.open("/dev/null", os.O_RDWR)]],
    ids=["none", "too small", "not sealed", "no memory"],
)  # fmt: skip
def test_memory_that_inputs_do_not_surely_fit_into_ends_the_session(user, tmp_path, memories):
    spec = (TensorSpec("x", "uint8", (100,)),)

    def answer(server):
        with server.accept()[0] as client:
            hello = client.recv(1 << 16)
            assert Hello.parse(hello[64:]).want == WANT_SHARED_MEMORY
            rights = Rights.SHARED_MEMORY
            opened = Opened(hello[64:80], bytes(16), 1408, 64, spec, spec, rights=rights)
            payload = opened.pack() + NO_MAC
            header = hello_ack(WireStatus.OK, len(payload), session=5, func_id=7, grant=9)
            descriptors = [make() for make in memories]
            socket.send_fds(client, [header + payload], descriptors)
            for each in descriptors:
                os.close(each)
            assert client.recv(1) == b""  # it has given the session up

    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        server.settimeout(LONG)
        with ThreadPoolExecutor(1) as pool:
            answered = pool.submit(answer, server)
            found = user(f"unix://{path}", "m")
            answered.result(LONG)
    assert found[0] == 1 and found[1].startswith("-71 "), found


def test_what_cannot_be_opened_is_said(serve, user):
    service = serve(key=KEY, encrypt=True)
    for said, status in (
        (user(service.url(), "none", 2, 1), -404),
        (user(service.url(), "plus", 0, 1), -426),
        (user(service.url(), "plus", 0, 0), -401),
        (user("udp://127.0.0.1:9"), -111),
        (user("tcp://127.0.0.1:9"), -111),
        (user("unix:///nowhere.sock"), -2),
    ):
        assert said[0] == 1 and said[1].startswith(f"{status} "), said


def test_the_example_runs(serve, installed, tmp_path):
    source = HERE.parents[2] / "nic_frontend/examples/infer.c"
    program = compiled(installed, source, tmp_path)
    (tmp_path / "input").write_bytes(bytes([7]) * SIZE)
    (tmp_path / "key").write_bytes(KEY)
    service = serve(key=KEY)
    command = [program, service.url(), "plus", "70", tmp_path / "input", tmp_path / "key"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONG, check=True)
    assert f"input in0: uint8 [{SIZE}], {SIZE} bytes" in done.stdout
    assert done.stdout.endswith("out0:" + " 08" * 16 + "\n")
    done = subprocess.run(
        [program, service.url(), "plus"], capture_output=True, text=True, timeout=LONG, check=False
    )
    assert (done.returncode, done.stderr) == (
        1, "the server does not accept the key, or wants one\n"
    )  # fmt: skip


def test_a_program_asks_a_model_of_any_size(make_service, installed, tmp_path):
    program = compiled(installed, HERE / "use_packed.c", tmp_path)
    specs = [TensorSpec("ids", "int64", (-1,)), TensorSpec("text", "bytes", (-1,))]
    service = make_service(key=KEY, encrypt=False)
    path = tmp_path / "nic.sock"
    function = lambda ids, text: (np.cumsum(ids), text[::-1])  # noqa: E731
    worker = PackedWorker(path, "m", specs, specs, function)
    try:
        service.wait_for("m")
        for scheme in ("udp", "tcp", "unix"):
            command = [program, service.url(scheme), "m", "1"]
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=LONG, check=False
            )
            assert (done.returncode, done.stderr) == (0, "")
    finally:
        worker.close()


def test_the_example_of_texts_runs(make_service, installed, tmp_path):
    source = HERE.parents[2] / "nic_frontend/examples/infer_text.c"
    program = compiled(installed, source, tmp_path)
    service = make_service()
    specs = [TensorSpec("text", "bytes", (-1,))]
    backwards = lambda text: [np.array([each[::-1] for each in text], object)]  # noqa: E731
    worker = PackedWorker(tmp_path / "nic.sock", "reverse", specs, specs, backwards)
    try:
        service.wait_for("reverse")
        command = [program, service.url(), "reverse", "abc", "", "Zug"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LONG, check=True)
    finally:
        worker.close()
    assert done.stdout == "text: bytes [3]\n  cba\n  \n  guZ\n"


@pytest.fixture
def streamed(make_service):
    """A service with a model that counts, and its worker."""
    made = []

    def make(environ=None, **settings):
        tests, service = of_tests("test_streaming"), make_service(**settings)
        made.append(tests.Worker(service._folder / "nic.sock", tests.Counts(), environ=environ))
        service.wait_for("s")
        return service, made[-1]

    yield make
    for each in made:
        each.close()


def test_a_program_reads_answers_in_parts(streamed, installed, tmp_path):
    program = compiled(installed, HERE / "use_streams.c", tmp_path)
    # Whose farewell gets lost leaves a stream behind, which is let go after half of this.
    service, _ = streamed({"SHUNTER_RESPONSE_TIMEOUT_S": "20"}, key=KEY, encrypt=False)
    for scheme, protection in (("udp", 0), ("udp", 1), ("udp", 2), ("tcp", 0), ("unix", 2)):
        command = [program, service.url(scheme), "1", str(protection)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LONG, check=False)
        assert (done.returncode, done.stderr) == (0, "")
    for kind in "Late", "Link":
        link = link_of(int(service.url().rpartition(":")[2]), 5, 0.05, kind)
        try:
            command = [program, f"udp://127.0.0.1:{link.port}", "1"]
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=LONG, check=False
            )
        finally:
            link.close()
        assert (done.returncode, done.stderr, link.faults > 20) == (0, "", True)


def test_a_program_reads_parts_until_the_worker_has_gone(streamed, installed, tmp_path):
    program = compiled(installed, HERE / "use_streams.c", tmp_path)
    service, worker = streamed()
    with subprocess.Popen([program, service.url("tcp"), "wait"], stdout=subprocess.PIPE) as reads:
        while not worker.handler.steps:
            time.sleep(0.01)
        service.close()
        said, _ = reads.communicate(timeout=LONG)
    assert reads.returncode == 0 and int(said) < 0


def test_the_example_of_parts_runs(make_service, installed, tmp_path):
    tests = of_tests("test_streaming")

    class Letters(tests.Counts):
        def infer(self, batch):
            [text] = batch["text"]
            for letter in text.decode():
                yield [letter]

    program = compiled(installed, HERE.parents[2] / "nic_frontend/examples/stream.c", tmp_path)
    service = make_service()
    spec = {"name": "text", "dtype": "bytes", "shape": []}
    tensors = {"inputs": [spec], "outputs": [spec], "streamed": True}
    worker = tests.Worker(service._folder / "nic.sock", Letters(), tensors=tensors)
    try:
        service.wait_for("s")
        for more, said in (([], "Z\nu\ng\n"), (["2"], "Z\nu\n")):
            command = [program, service.url(), "s", "Zug", *more]
            done = subprocess.run(command, capture_output=True, text=True, timeout=LONG, check=True)
            assert done.stdout == said
    finally:
        worker.close()


def test_what_is_installed(tmp_path, monkeypatch):
    monkeypatch.setenv("DESTDIR", str(tmp_path / "root"))
    assert client_library.main(["--prefix", "/opt/shunter"]) == 0
    lib = tmp_path / "root/opt/shunter/lib"
    assert os.readlink(lib / "libshunter_client.so").startswith("libshunter_client.so.1.")
    assert "prefix=/opt/shunter\n" in (lib / "pkgconfig/shunter_client.pc").read_text()
    header = tmp_path / "root/opt/shunter/include/shunter_client.h"
    names = subprocess.check_output(
        ["nm", "-D", "--defined-only", lib / "libshunter_client.so"], text=True
    )
    found = {line.split()[-1] for line in names.splitlines()}
    assert found and all(f" {name}(" in header.read_text().replace("*", " ") for name in found)


def test_answers_to_a_hello_that_were_changed_do_no_harm(installed, tmp_path):
    specs = tuple(TensorSpec(f"tensor{i}", "float32", (i, 3)) for i in range(MAX_TENSORS))
    payload = Opened(bytes(16), bytes(16), 1408, 64, specs, specs).pack() + NO_MAC
    header = hello_ack(WireStatus.OK, len(payload), session=5, func_id=7, grant=9)
    (tmp_path / "answer").write_bytes(header + payload)
    program = compiled(installed, HERE / "fuzz_hello.c", tmp_path, *build.includes())
    command = [program, tmp_path / "answer", "1", "20000"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONG, check=False)
    assert done.returncode == 0, done.stderr
    opened, changed = map(int, done.stdout.split())
    assert 1000 < opened < 20_000 and changed > 10_000


def test_only_the_answer_to_the_hello_counts(user):
    """Whatever else comes from the server's address means nothing."""

    def answer(server):
        hello, client = server.recvfrom(1 << 16)
        nonce = hello[64:80]
        cookie = hello_ack(WireStatus.COOKIE, 32) + nonce + bytes(range(16))
        refusal = hello_ack(WireStatus.UNKNOWN_FUNCTION, 16)
        wrong = [b"", bytes(64), hello, refusal + bytes(16), refusal, refusal + nonce[:-1]]
        wrong += [cookie[:at] for at in range(len(cookie))]
        for each in wrong:
            server.sendto(each, client)
        server.sendto(cookie, client)
        while True:
            again = Hello.parse(server.recvfrom(1 << 16)[0][64:])
            if again.cookie == bytes(range(16)):
                break
        assert again.nonce == nonce
        server.sendto(refusal + nonce, client)

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(LONG)
        with ThreadPoolExecutor(1) as pool:
            answered = pool.submit(answer, server)
            found = user(f"udp://127.0.0.1:{server.getsockname()[1]}")
            answered.result(LONG)
    assert found[0] == 1 and found[1].startswith("-404 ")


def of_tests(file):
    """What is in another file of tests."""
    place = importlib.util.spec_from_file_location(f"of_{file}", HERE / f"{file}.py")
    module = importlib.util.module_from_spec(place)
    place.loader.exec_module(module)
    return module


def link_of(port, seed, share, kind="Link"):
    """A link that loses."""
    return getattr(of_tests("test_native_client"), kind)(port, seed, share)


@pytest.mark.parametrize(("protection", "keyed"), [(0, 0), (2, 1)])
def test_a_program_asks_over_a_bad_link(serve, user, protection, keyed):
    service = serve(size=3000, key=KEY if keyed else None)
    link = link_of(int(service.url().rpartition(":")[2]), 5, 0.05)
    try:
        found = user(f"udp://127.0.0.1:{link.port}", protection=protection, keyed=keyed)
    finally:
        link.close()
    assert found == (0, "") and link.faults > 20


def test_credit_is_asked_for_again_when_the_question_was_lost(user):
    """A server that first has no room, and does not hear the first questions."""
    heard = []

    def serve(server):
        hello, client = server.recvfrom(1 << 16)
        spec = (TensorSpec("x", "uint8", (8,)),)
        payload = Opened(hello[64:80], bytes(16), 1408, 64, spec, spec).pack() + NO_MAC
        header = hello_ack(WireStatus.OK, len(payload), session=5, func_id=7, grant=0)
        server.sendto(header + payload, client)
        while True:
            data, client = server.recvfrom(1 << 16)
            if data[3] == MessageType.HELLO:  # once more, since the answer took a while
                continue
            heard.append(data[3])
            said = {"session": 5, "func_id": 7, "credit": 1000}
            if heard.count(MessageType.ACK) == 4:
                server.sendto(Header(type=MessageType.CREDIT, **said).pack(), client)
            if data[3] == MessageType.REQ:
                end = {"req_id": parse(data).req_id, "status": 500}
                server.sendto(Header(type=MessageType.ERROR, **said, **end).pack(), client)
                return

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(LONG)
        with ThreadPoolExecutor(1) as pool:
            served = pool.submit(serve, server)
            url = f"udp://127.0.0.1:{server.getsockname()[1]}"
            with pytest.raises(AssertionError, match="results"):  # which it expects to be there
                user(url)
            served.result(LONG)
    assert heard[:4] == [MessageType.ACK] * 4 and MessageType.REQ in heard
