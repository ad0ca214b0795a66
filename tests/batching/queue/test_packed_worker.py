"""The worker's end of packed requests equals the codec, however a run is cut into pieces."""

import errno
import itertools
import math
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shunter.batching.queue.packed import ALIGN, MOST_BYTES, PackedError, Packing
from shunter.batching.queue.tensor_spec import ANY, BYTES, TensorSpec, dtype_of

HERE = Path(__file__).parent
PARTS = ("packed/packed_run", "worker/packed_gather", "worker/packed_put", "worker/packed_read")
FEW = settings(max_examples=max(1, settings.default.max_examples // 2))
"""Each example is a process."""
ROOM = 1 << 14


@pytest.fixture(scope="module")
def program(compile_c):
    """packed_events.c under the sanitizers: what it says to events."""
    found = compile_c(HERE / "packed_events.c", PARTS)

    def run(packing, events, *, most_rows=1, pieces=1, room=ROOM):
        specs = [len(packing.specs)]
        for spec in packing.specs:
            item = 0 if spec.dtype == BYTES else dtype_of(spec.dtype).itemsize
            specs += [item, len(spec.shape), *spec.shape]
        text = "\n".join(" ".join(map(str, event)) for event in events) + "\n"
        done = subprocess.run(
            [str(found), *map(str, (4, pieces, room, most_rows, *specs))],
            input=text, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        return [line.split(" ") for line in done.stdout.splitlines()]

    return run


def pieces_of(runs, cut):
    """Events of entries whose runs lie in pieces of these lengths, in two regions."""
    regions, events, most = [bytearray(), bytearray()], [], 1
    for entry, (run, rows) in enumerate(runs):
        at = number = 0
        while at < len(run):
            length, region = cut(len(run) - at), number % 2
            events.append(("I", entry, number, len(regions[region]), length, region))
            regions[region] += run[at : at + length]
            at, number = at + length, number + 1
        most = max(most, number)
        events += [("C", entry, number), ("L", entry, len(run), rows)]
    return [("M", i, bytes(region).hex()) for i, region in enumerate(regions)] + events, most


class Requests:
    """Up to four requests of one function, with what is in them."""

    def __init__(self, draw):
        self.batched = draw(st.booleans())
        self.specs = tuple(self._spec(draw, i) for i in range(draw(st.integers(1, 4))))
        self.packing = Packing(self.specs, self.batched)
        self.rows = [
            draw(st.integers(1, 3)) if self.batched else 1 for _ in range(draw(st.integers(1, 4)))
        ]
        self.tensors = [[self._tensor(draw, s, n) for s in self.specs] for n in self.rows]
        self.runs = [self.packing.pack(each) for each in self.tensors]
        self.events, self.pieces = pieces_of(
            zip(self.runs, self.rows, strict=True), lambda left: draw(st.integers(1, left))
        )

    @staticmethod
    def _spec(draw, i):
        dtype = draw(st.sampled_from(("uint8", "bfloat16", "float32", "complex128", BYTES)))
        shape = draw(st.lists(st.sampled_from((ANY, 0, 1, 2, 3)), max_size=3))
        return TensorSpec(f"t{i}", dtype, tuple(shape))

    def _tensor(self, draw, spec, rows):
        shape = tuple(draw(st.integers(0, 4)) if n == ANY else n for n in spec.shape)
        shape = (rows, *shape) if self.batched else shape
        found = np.empty(shape, object if spec.dtype == BYTES else dtype_of(spec.dtype))
        for i in range(found.size):
            byte = draw(st.integers(0, 255))
            found.flat[i] = bytes([byte]) * (byte % 4) if spec.dtype == BYTES else byte % 100
        return found

    def shape(self, request, t):
        found = self.tensors[request][t].shape
        return found[1:] if self.batched else found

    def most(self):
        """Sizes to which all can be padded."""
        return [
            [max(s) for s in zip(*(self.shape(i, t) for i in range(len(self.rows))), strict=True)]
            for t in range(len(self.specs))
        ]

    def content(self, request, t):
        """The bytes of a tensor as they are."""
        place = self.packing.places(self.runs[request])[1][t]
        return bytes(self.runs[request][place.offset : place.offset + place.bytes])

    def padded(self, request, t, sizes):
        spec, tensor = self.specs[t], self.tensors[request][t]
        if spec.dtype == BYTES:
            return self.content(request, t)
        full = np.zeros((self.rows[request], *sizes), tensor.dtype)
        inner = tuple(slice(n) for n in self.shape(request, t))
        full[(slice(None), *inner)] = tensor if self.batched else tensor[None]
        return full.tobytes()


    def strings(self, t):
        """Where the byte strings of a tensor are, as the program says it."""
        if self.specs[t].dtype != BYTES:
            return ""
        said, at = [], 0
        for request in range(len(self.rows)):
            end = at
            for content in self.tensors[request][t].reshape(-1):
                said += [end + 4, end := end + 4 + len(content)]
            at += -(-(end - at) // ALIGN) * ALIGN
        return " ".join(map(str, [len(said) // 2, *said])) + ";"


requests = st.composite(Requests)()


@pytest.mark.parametrize(
    ("rows", "size", "good"), [(2, 0, 1), (2, 1 << 31, 0), (1 << 30, 1 << 31, 0), (1 << 31, 2, 0)]
)
def test_sizes_whose_product_is_no_number_of_64_bits_are_not_believed(program, rows, size, good):
    packing = Packing((TensorSpec("t", "float64", (ANY,)),), batched=True)
    run = bytearray(packing.pack([np.zeros((2, 0))]))
    run[0:4], run[16:20] = rows.to_bytes(4, "little"), size.to_bytes(4, "little")
    events, pieces = pieces_of([(bytes(run), rows)], lambda left: left)
    found = program(packing, [*events, ("r", 0)], most_rows=2**31 - 1, pieces=pieces)
    assert found == [[str(good), str(rows * good)]]


@FEW
@given(requests, st.data())
def test_tensors_come_together_padded_or_as_they_are(program, made, data):
    most = [[n + data.draw(st.integers(0, 2)) for n in sizes] for sizes in made.most()]
    flat = list(itertools.chain(*most))
    numbers = range(len(made.rows))
    events = [*made.events, ("r", *numbers), ("l",), ("g", len(flat), *flat), ("b",)]
    events += [("g", 0), ("p",)]
    read, largest, padded, strings, plain, put = program(
        made.packing, events, most_rows=3, pieces=made.pieces
    )
    both = list(itertools.product(numbers, range(len(made.specs))))
    assert read == [str(len(made.rows)), *map(str, made.rows)]
    assert largest == list(map(str, [sum(made.rows), *itertools.chain(*made.most())]))
    if flat:
        assert padded == ["0", *(made.padded(i, t, most[t]).hex() for i, t in both)]
    assert plain == ["0", *(made.content(i, t).hex() for i, t in both)]
    assert put == ["0", *(bytes(run).hex() for run in made.runs)]
    places = "".join(made.strings(t) for t in range(len(made.specs)))
    assert " ".join(strings) == f"{places} {' '.join(read[1:])}"


@FEW
@given(requests, st.data())
def test_other_bytes_are_read_as_the_codec_reads_them(program, made, data):
    run, rows = bytearray(made.runs[0]), made.rows[0]
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, min(len(run), made.packing.header) - 1))
        run[at] = data.draw(st.sampled_from((0, 1, 2, 255)) | st.integers(0, 255))
    run = run[: data.draw(st.integers(0, len(run)))] if data.draw(st.booleans()) else run
    events, pieces = pieces_of([(run, rows)], lambda left: data.draw(st.integers(1, left)))
    try:
        expected, places = made.packing.places(run)
    except PackedError:
        expected = 0
    if expected != rows:
        expected = 0
    events += [("r", 0), *([("g", 0)] if expected else [])]
    read, *gathered = program(made.packing, events, most_rows=3, pieces=pieces)
    assert read == [str(int(expected > 0)), str(expected)]
    if expected:
        found = [bytes(run[p.offset : p.offset + p.bytes]).hex() for p in places]
        assert gathered == [["0", *found]]



X = Packing((TensorSpec("x", "int16", (ANY,)), TensorSpec("s", BYTES, (ANY,))))
BATCHED = Packing((TensorSpec("x", "int16", (ANY, ANY)),), batched=True)


@pytest.mark.parametrize(
    ("rows", "read"), [(0, "0"), (1, "0"), (2, "2"), (3, "0"), (1 << 32, "0")]
)
def test_rows_are_those_of_the_page_and_no_more_than_the_worker_takes(program, rows, read):
    run = BATCHED.pack([np.zeros((2, 1, 1), np.int16)])
    events, _ = pieces_of([(run, rows)], lambda left: left)
    found = [[str(int(read != "0")), read]]
    assert program(BATCHED, [*events, ("r", 0)], most_rows=2) == found
    if rows == 2:
        assert program(BATCHED, [*events, ("r", 0)], most_rows=1) == [["0", "0"]]


@pytest.mark.parametrize("sizes", [(0, MOST_BYTES), (1 << 31, 0), (1 << 16, 0), ((1 << 32) - 1, 0)])
def test_dimensions_of_nothing_are_bounded(program, sizes):
    run = BATCHED.pack([np.zeros((1, 0, 0), np.int16)])
    np.frombuffer(run, "<u4")[4:6] = sizes
    read = str(int(math.prod(max(1, n) for n in sizes) * 2 <= MOST_BYTES))
    events, _ = pieces_of([(run, 1)], lambda left: left)
    assert program(BATCHED, [*events, ("r", 0)]) == [[read, read]]
    if read == "0":
        with pytest.raises(PackedError, match=r"bounds|bytes for"):
            BATCHED.unpack(run)


def test_pieces_that_are_not_as_long_as_the_entry_are_the_front_ends_fault(program):
    run = X.pack([[1, 2], [b"a"]])
    for bytes_ in (len(run) - 1, len(run) + 1, 1 << 63):
        events, _ = pieces_of([(run, 1)], lambda left: left)
        [[result, *_]] = program(X, [*events, ("L", 0, bytes_, 1), ("r", 0)])
        assert int(result) == -errno.EPROTO
    for wrong in [("I", 0, 0, 1, len(run), 0), ("I", 0, 0, 0, len(run), 5), ("C", 0, 3)]:
        [[result, *_]] = program(X, [*events, wrong, ("r", 0)])
        assert int(result) == -errno.EPROTO


@pytest.mark.parametrize(
    ("content", "result"),
    [
        (b"\1\0\0\0a\2\0\0\0bc", "2 4 5 9 11; 1"),
        (b"\1\0\0\0a\3\0\0\0bc", "0; 0"),
        (b"\1\0\0\0a\1\0\0\0bc", "0; 0"),
        (b"\1\0\0\0a\xff\xff\xff\xffbc", "0; 0"),
        (b"\5\0\0\0a\0\0\0\0bc", "0; 0"),
    ],
)
def test_byte_strings_are_exactly_their_bytes(program, content, result):
    run = X.pack([[], [b"a", b"bc"]])
    run[-len(content) :] = content
    events, _ = pieces_of([(run, 1)], lambda left: left)
    *_, strings = program(X, [*events, ("r", 0), ("g", 0), ("b",)])
    assert " ".join(strings) == result


def test_an_answer_without_room_is_not_written(program):
    run = X.pack([[1, 2], [b"a"]])
    events, _ = pieces_of([(run, 1)], lambda left: left)
    events += [("r", 0), ("g", 0), ("p",)]
    assert program(X, events, room=len(run))[-1] == ["0", bytes(run).hex()]
    assert program(X, events, room=len(run) - 1)[-1] == ["1", ""]
