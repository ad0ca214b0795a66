"""The strategy library: its rule as tables and properties, all of it under the sanitizers."""

import ctypes
import json
import subprocess
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.nic_frontend import build as native
from shunter.plugins.errors import UserError
from shunter.plugins.triton.existing import build
from shunter.plugins.triton.existing.page import HOLDS_S, StrategyPage
from shunter.plugins.triton.layout import PAGE_PARAMETER, format_of, unpack

HERE = Path(__file__).parent
U64 = ctypes.c_uint64
MS = 1_000_000
NOW = 10**15


def structure(**fields):
    return type("Structure", (ctypes.Structure,), {"_fields_": list(fields.items())})


Numbers = structure(
    cap=U64, apart=U64, request_class=U64, slo=U64, fixed=U64, per_row=U64, waited=U64
)
Candidate = structure(rows=U64, deadline=U64, request_class=ctypes.c_uint8)
Batch = structure(rows=U64, tightest=U64, request_class=ctypes.c_uint8)


def compiled(sources, to, *flags):
    command = [*native.compiler(), "-std=c11", "-O1", "-g", *native.WARNINGS, *build.flags()]
    command += [*flags, *map(str, sources), "-o", str(to)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return to


@pytest.fixture(scope="module")
def rule(tmp_path_factory):
    to = tmp_path_factory.mktemp("rule") / "rule.so"
    library = ctypes.CDLL(str(compiled([build.SOURCES / "rule.c"], to, "-fPIC", "-shared")))
    library.strategy_includes.restype = ctypes.c_bool

    class Rule:
        def __init__(self, **numbers):
            self.numbers, self.batch = Numbers(**numbers), Batch()

        def __call__(self, rows=1, deadline=0, request_class=0):
            """Whether it was let in."""
            at = (ctypes.byref(self.numbers), ctypes.byref(self.batch))
            candidate = ctypes.byref(Candidate(rows, deadline, request_class))
            is_in = library.strategy_includes(*at, candidate, U64(NOW))
            if is_in:
                library.strategy_include(*at, candidate, U64(NOW))
            return is_in

    return Rule


LATENCY = {"fixed": 10 * MS, "per_row": 2 * MS}
IN, OUT = True, False


@pytest.mark.parametrize(
    ("numbers", "requests", "told"),
    [
        ({}, [(1, 0, 0)] * 40 + [(9, 0, 1), (1, NOW + 1, 0)], [IN] * 42),
        ({"cap": 2}, [(1, 0, 0)] * 3, [IN, IN, OUT]),
        ({"cap": 2}, [(5, 0, 0), (1, 0, 0)], [IN, OUT]),
        ({"cap": 4}, [(3, 0, 0), (2, 0, 0), (1, 0, 0)], [IN, OUT, IN]),
        ({"apart": 1}, [(1, 0, 0), (1, 0, 1), (1, 0, 0)], [IN, OUT, IN]),
        ({"apart": 1}, [(1, 0, 1), (1, 0, 0), (1, 0, 1)], [IN, OUT, IN]),
        # A batch of two takes 14 ms, of three 16.
        (LATENCY, [(1, NOW + 15 * MS, 0), (1, 0, 0), (1, 0, 0)], [IN, IN, OUT]),
        (LATENCY, [(1, 0, 0), (1, NOW + 15 * MS, 0), (1, 0, 0)], [IN, IN, OUT]),
        (LATENCY, [(1, 0, 0), (1, 0, 0), (1, NOW + 15 * MS, 0)], [IN, IN, OUT]),
        # What is late even alone makes nobody's batch smaller.
        (LATENCY, [(1, NOW + 11 * MS, 0), (1, 0, 0), (1, 0, 0)], [IN, IN, IN]),
        (LATENCY, [(1, 0, 0), (1, NOW + 11 * MS, 0), (1, 0, 0)], [IN, IN, IN]),
        # Without a latency nothing is known of deadlines.
        ({}, [(1, NOW + 1, 0), (1, NOW + 1, 0)], [IN, IN]),
        ({"per_row": 2**63}, [(1, 2**64 - 1, 0), (2**63, 0, 0), (2**63, 0, 0)], [IN, IN, IN]),
    ],
)
def test_who_joins_a_batch(rule, numbers, requests, told):
    asked = rule(**numbers)
    assert [asked(*request) for request in requests] == told


requests_of = st.lists(
    st.tuples(st.integers(1, 8), st.just(0) | st.integers(NOW, NOW + 60 * MS), st.integers(0, 1)),
    min_size=1,
    max_size=30,
)


@given(requests=requests_of, cap=st.integers(0, 20), apart=st.integers(0, 1))
def test_a_batch_keeps_cap_class_and_the_deadlines_that_it_can(rule, requests, cap, apart):
    asked = rule(cap=cap, apart=apart, **LATENCY)
    members = [each for each in requests if asked(*each)]
    rows = sum(each[0] for each in members)
    assert members[0] == requests[0]
    assert not cap or rows <= cap or len(members) == 1
    assert not apart or len({each[2] for each in members}) == 1
    for own, deadline, _ in members:
        could = deadline >= NOW + LATENCY["fixed"] + own * LATENCY["per_row"]
        assert not deadline or not could or NOW + 10 * MS + rows * 2 * MS <= deadline


# ---- the library in a server


SANITIZED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def with_a_server(folder, *flags):
    sources = [HERE / "fake_batcher.c", *build.sources()]
    return compiled(sources, folder / "fake_batcher", *SANITIZED, *flags)


@pytest.fixture(scope="module")
def fake(tmp_path_factory):
    return with_a_server(tmp_path_factory.mktemp("fake"))


def formed(fake, path, *, steps=20000, seed=1, resets=1, cap=0, meanwhile=None):
    """What came of it; ``meanwhile`` is called once the page has been read."""
    config = json.dumps(
        {"name": "fake", "parameters": {PAGE_PARAMETER: {"string_value": str(path)}}},
        separators=(",", ":"),
    )
    command = [str(fake), config, *map(str, (steps, seed, resets, cap))]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, text=True, **pipes) as process:
        held_up = threading.Timer(60, process.kill)
        held_up.start()
        try:
            told = [process.stdout.readline()]
            if meanwhile is not None:
                meanwhile()
            told += process.stdout
            process.wait()
        finally:
            held_up.cancel()
            process.kill()
    assert process.returncode == 0, "".join(told)[-4000:]
    return {key: int(value) for key, value in map(str.split, told)}


@pytest.mark.parametrize("resets", [0, 1])
@pytest.mark.parametrize(("cap", "apart"), [(0, 1), (5, 0), (7, 1)])
def test_batches_that_grow_while_they_wait_keep_cap_and_class(fake, tmp_path, resets, cap, apart):
    with StrategyPage(tmp_path / "page") as page:
        page.write(cap=cap, apart=apart, fixed_ns=10 * MS, per_row_ns=2 * MS)
        found = formed(fake, page.path, resets=resets, cap=cap, seed=7)
    assert found["batches"] > 1000
    assert found["over"] == 0
    assert bool(found["mixed"]) == (not apart)
    # The first of a batch is never refused, or it would wait for ever.
    assert found["refused_alone"] == 0


class SlowPage(StrategyPage):
    """Its writer is held up in the midst of each change."""

    def _write_sequence(self):
        super()._write_sequence()
        time.sleep(0.002)


def test_a_writer_that_is_held_up_in_a_change_lets_nothing_slip(fake, tmp_path):
    with SlowPage(tmp_path / "page") as page:
        page.write(cap=3, apart=1)
        ends = threading.Event()

        def rewrite():
            while not ends.is_set():
                page.write(cap=3)

        writer = threading.Thread(target=rewrite)
        try:
            found = formed(fake, page.path, steps=200_000, cap=3, meanwhile=writer.start)
        finally:
            ends.set()
            if writer.ident:
                writer.join()
    assert (found["over"], found["mixed"]) == (0, 0)


def test_a_server_that_tells_of_no_new_batch_is_never_stuck(tmp_path):
    impatient = with_a_server(tmp_path, "-DSTUCK_NS=1000")
    with StrategyPage(tmp_path / "page") as page:
        page.write(cap=3, apart=1)
        found = formed(impatient, page.path, resets=2, cap=3)
    assert found["refused_alone"] > 0
    assert found["batches"] > 1000


def test_without_a_page_that_holds_batches_are_the_servers_own(fake, tmp_path):
    free = formed(fake, tmp_path / "missing")
    assert free["mixed"] > 0
    page = StrategyPage(tmp_path / "page")
    page.write(cap=1, apart=1)
    whole = page.path.read_bytes()
    kept = formed(fake, page.path, cap=1)
    assert kept["batches"] > 1.2 * free["batches"]
    assert kept["mixed"] == kept["over"] == 0
    page.close()  # it says that its numbers hold no longer
    assert formed(fake, page.path) == free
    for at, damage in ((0, b"\1"), (8, b"\0\0"), (16, b"\3"), (40, b"\2"), (48, b"\2")):
        broken = bytearray(whole)
        broken[at : at + len(damage)] = damage
        (tmp_path / "broken").write_bytes(broken)
        assert formed(fake, tmp_path / "broken") == free, at
    (tmp_path / "short").write_bytes(whole[:-1])
    assert formed(fake, tmp_path / "short") == free
    assert formed(fake, tmp_path) == free
    (tmp_path / "cut").write_bytes(whole)  # a part of a path is none
    for path in ("/" + "x" * 600, f"{tmp_path}/cut\tx", f"{tmp_path}/cut" + "\t"):
        assert formed(fake, path) == free


def test_a_page_is_whole_and_holds_for_a_while(tmp_path):
    with StrategyPage(tmp_path / "page") as page:
        page.write(cap=3)
        page.write(apart=1)
        found = unpack("strategy", page.path.read_bytes())
        assert (found["cap"], found["apart"], found["sequence"] % 2) == (3, 1, 0)
        left = found["until_ns"] - time.monotonic_ns()
        assert 0 < left <= HOLDS_S * 1e9
        with pytest.raises(UserError, match="written by somebody else"):
            StrategyPage(page.path)
    before = found["sequence"]
    with StrategyPage(tmp_path / "page") as page:  # the next one goes on in the same file
        page.write(cap=4)
    found = unpack("strategy", (tmp_path / "page").read_bytes())
    assert found["until_ns"] == 0
    assert found["sequence"] > before
    assert (tmp_path / "page").stat().st_size == format_of("strategy").size
