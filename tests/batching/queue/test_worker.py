"""What a worker makes of shared memory: batches, their inputs, and nothing of what cannot be."""

import errno
import itertools
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shunter.batching.queue.layout import MAX_TENSORS
from shunter.batching.queue.native import REGIONS

HERE = Path(__file__).parent
REFUSED = -errno.EPROTO
LARGE = (1 << 64) - 1
FEW = settings(max_examples=max(1, settings.default.max_examples // 4))
"""For what is asked in many ways: each example is a process."""


def bytes_of(region, begin, end):
    """As in worker_events.c."""
    return bytes((region * 31 + i * 7 + i // 256) & 255 for i in range(begin, end))


@pytest.fixture(scope="module")
def program(compile_c):
    """worker_events.c under the sanitizers: what it says to events, and bytes it has gathered."""
    found = compile_c(HERE / "worker_events.c", ["worker/worker"])

    def run(events, *, entries=4, pieces=8, inputs=(4,), outputs=(4,)):
        sizes = [len(inputs), *inputs, len(outputs), *outputs]
        text = "\n".join(" ".join(map(str, event)) for event in events) + "\n"
        done = subprocess.run(
            [str(found), *map(str, (entries, pieces, *sizes))],
            input=text, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        *lines, gathered = done.stdout.splitlines()
        return [line.split(" ") for line in lines], int(gathered)

    return run


# ---- inputs


class Requests:
    """Entries whose inputs lie in random pieces in random regions."""

    def __init__(self, draw):
        self.draw = draw
        sizes = st.lists(st.sampled_from([0, 1, 3, 8, 61]), min_size=1, max_size=MAX_TENSORS)
        self.inputs = draw(sizes)
        self.regions = draw(
            st.dictionaries(st.integers(0, REGIONS - 1), st.integers(61, 150), min_size=1)
        )
        self.entries = draw(st.permutations(range(4)))[: draw(st.integers(1, 4))]
        self.pieces = {entry: self._pieces() for entry in self.entries}

    def _pieces(self):
        """Offset, length and region of each: tensors one behind the other, each in parts."""
        found = []
        for size in self.inputs:
            cuts = self.draw(st.sets(st.integers(1, max(1, size - 1)), max_size=3))
            ends = sorted({*(cut for cut in cuts if cut < size), size})
            for begin, end in zip([0, *ends], ends, strict=False):
                region, length = self.draw(st.sampled_from(sorted(self.regions))), end - begin
                offset = self.draw(st.integers(0, self.regions[region] - length))
                found.append((offset, length, region))
            if self.draw(st.booleans()):
                found.append((self.draw(st.integers(0, LARGE)), 0, 77))  # nobody looks there
        return found

    def events(self, counts=None):
        found = [("M", region, size) for region, size in self.regions.items()]
        for entry, pieces in self.pieces.items():
            found += [("I", entry, i, *piece) for i, piece in enumerate(pieces)]
            found.append(("C", entry, (counts or {}).get(entry, len(pieces))))
        return [*found, ("g", *self.entries)]

    @property
    def most(self):
        return max(1, *map(len, self.pieces.values()))

    def rows(self):
        """What is gathered: by tensor, the rows of the entries."""
        whole = {
            entry: b"".join(bytes_of(region, at, at + n) for at, n, region in pieces if n)
            for entry, pieces in self.pieces.items()
        }
        found, at = [], 0
        for size in self.inputs:
            found.append(b"".join(whole[e][at : at + size] for e in self.entries).hex())
            at += size
        return found


@st.composite
def requests(draw):
    return Requests(draw)


@given(requests())
def test_inputs_come_together_from_wherever_they_lie(program, made):
    [[result, *rows]], gathered = program(made.events(), pieces=made.most, inputs=made.inputs)
    assert result == "0" and rows == made.rows()
    assert gathered == len(made.entries) * sum(made.inputs)


def ways_to_be_wrong(made, entry, index):
    """Pieces that are no tensors, instead of those of an entry."""
    pieces = made.pieces[entry]
    offset, length, region = piece = pieces[index]
    size = made.regions[region]
    unknown = next(n for n in range(REGIONS + 1) if n not in made.regions)
    before, behind = pieces[:index], pieces[index + 1 :]
    return {
        "behind the end": [*before, (size - length + 1, length, region), *behind],
        "far behind the end": [*before, (LARGE, length, region), *behind],
        "so far that it wraps": [*before, (LARGE - length + 1, length, region), *behind],
        "unknown region": [*before, (0, length, unknown), *behind],
        "no region": [*before, (offset, length, 1 << 31), *behind],
        "longer": [*before, (0, length + 1, region), *behind],
        "as long as can be": [*before, (0, (1 << 32) - 1, region), *behind],
        "shorter": [*before, (offset, length - 1, region), *behind],
        "missing": [*before, (offset, 0, region), *behind],
        "twice": [*before, piece, piece, *behind],
        "left out": before + behind,
        "one too many": [*pieces, (0, 1, region)],
    }


WRONG = [
    *("behind the end", "far behind the end", "so far that it wraps", "unknown region"),
    *("no region", "longer", "as long as can be", "shorter", "missing", "twice", "left out"),
    "one too many",
]


@pytest.mark.parametrize("way", WRONG)
@FEW
@given(data=st.data(), made=requests())
def test_pieces_that_are_no_tensors_are_refused(program, way, data, made):
    entry = data.draw(st.sampled_from(made.entries))
    indices = [i for i, (_, length, _) in enumerate(made.pieces[entry]) if length]
    if not indices:
        return
    index = data.draw(st.sampled_from(indices))
    made.pieces[entry] = ways_to_be_wrong(made, entry, index)[way]
    found, gathered = program(made.events(), pieces=made.most, inputs=made.inputs)
    assert found == [[str(REFUSED)]]
    assert gathered <= len(made.entries) * sum(made.inputs)


def test_a_piece_does_not_cross_the_end_of_a_tensor(program):
    whole = [("M", 0, 16), ("I", 0, 0, 0, 8, 0), ("C", 0, 1), ("g", 0)]
    assert program(whole, inputs=(8,))[0][0][0] == "0"
    assert program(whole, inputs=(4, 4))[0] == [[str(REFUSED)]]
    assert program(whole, inputs=(4, 0, 4))[0] == [[str(REFUSED)]]


@pytest.mark.parametrize("count", [9, 1 << 16, 1 << 32, LARGE])
def test_more_pieces_than_there_can_be_are_refused(program, count):
    events = [("M", 0, 16), ("I", 0, 0, 0, 4, 0), ("C", 0, count), ("g", 0)]
    assert program(events, pieces=8)[0] == [[str(REFUSED)]]
    assert program([*events[:2], ("C", 0, 8), ("g", 0)], pieces=8)[0][0][0] == "0"


def test_the_entries_before_a_wrong_one_count_as_copied(program):
    events = [("M", 0, 16)]
    for entry, length in enumerate((4, 4, 3)):
        events += [("I", entry, 0, 4 * entry, length, 0), ("C", entry, 1)]
    found, gathered = program([*events, ("g", 0, 1), ("g", 0, 1, 2)])
    assert found[1] == [str(REFUSED)]
    assert gathered == 2 * 4 + 2 * 4 + 3


# ---- results


@FEW
@given(
    st.lists(st.sampled_from([0, 1, 5, 32]), min_size=1, max_size=MAX_TENSORS),
    st.permutations(range(6)),
    st.integers(1, 6),
)
def test_results_go_to_their_entries_and_nowhere_else(program, outputs, order, count):
    entries = order[:count]
    [kept, found], _ = program([("Z", *entries), ("s", *entries)], entries=6, outputs=outputs)
    assert kept[1:] == [(bytes(6 * size)).hex() for size in outputs]  # they are there already
    for tensor, (size, text) in enumerate(zip(outputs, found[1:], strict=True)):
        expected = [bytes(size)] * 6
        for row, entry in enumerate(entries):
            expected[entry] = bytes_of(tensor, row * size, (row + 1) * size)
        assert text == b"".join(expected).hex()


# ---- batches


def batches(program, *events, entries=8):
    return program([*events, ("W",)], entries=entries)[0][-1]


@FEW
@given(st.permutations(range(8)), st.integers(1, 8), st.integers(1, 1 << 40))
def test_a_batch_is_what_its_entries_name(program, order, count, given):
    links = [("X", one, other) for one, other in itertools.pairwise(order)]
    links.append(("X", order[count - 1], 1 << 63))  # the last names none: nobody looks
    # A worker that has answered none yet looks at the first.
    found = batches(program, *links, ("B", 1, order[0], count))
    follow_up = all(order[0] + i == order[i] for i in range(count))
    assert found == ["1", str(int(follow_up)), *map(str, order[:count])]


def test_batches_come_one_after_the_other_and_each_once(program):
    events = [("W",), ("X", 3, 0), ("B", 1, 3, 2), ("B", 2, 5, 1), ("W",), ("W",), ("W",)]
    found, _ = program(events, entries=8)
    assert found == [["0"], ["1", "0", "3", "0"], ["1", "1", "5"], ["0"]]


@given(
    st.lists(st.one_of(st.integers(0, 9), st.integers(0, LARGE)), min_size=8, max_size=8),
    st.one_of(st.integers(0, 9), st.integers(0, LARGE)),
    st.one_of(st.integers(0, 10), st.integers(0, LARGE)),
)
def test_a_page_of_wild_numbers_gives_entries_of_the_queue_or_nothing(program, words, first, count):
    """Loops end: a batch is never more than the queue."""
    events = [("X", entry, word) for entry, word in enumerate(words)]
    found = batches(program, *events, ("B", 1, first, count))
    chain, at = [], first
    while 1 <= count <= 8 and len(chain) < count and at < 8:
        chain.append(at)
        at = words[at]
    if chain and len(chain) == count:
        assert found[2:] == list(map(str, chain))
    else:
        assert found == [str(REFUSED)]


@pytest.mark.parametrize(("first", "count"), [(8, 1), (LARGE, 1), (0, 0), (0, 9), (0, LARGE)])
def test_a_batch_that_cannot_be_is_refused(program, first, count):
    assert batches(program, ("B", 1, first, count)) == [str(REFUSED)]


def test_as_many_are_held_as_may_be_and_answered_in_order(program):
    first = [("B", 1, 3, 1), ("t",), ("t",), ("B", 2, 5, 1), ("t",)]
    # The third lies where the first did: it is not looked at before that is done.
    second = [("B", 3, 6, 1), ("t",), ("d",), ("t",), ("d",), ("d",), ("t",)]
    found, _ = program([*first, *second], entries=8)
    taken = [["1", "1", "3"], ["0"], ["1", "1", "5"]]
    done_and_taken = [["1", "2"], ["2", "3"], ["3", "3"]]
    assert found[:3] == taken
    assert found[3:] == [["0"], done_and_taken[0], ["1", "1", "6"], *done_and_taken[1:], ["0"]]


# ---- a batch that grows


def test_a_batch_grows_until_its_worker_takes_it_and_everything_runs_once(compile_c):
    own = ("dispatch", "plan", "assign", "predict", "admission", "waiting", "batches", "workers")
    forming = ("forming/latency", "forming/release", "forming/threshold")
    sets = ("sets/sets", "sets/order", "sets/turns", "telemetry/telemetry", "worker/worker")
    program = compile_c(HERE / "growing.c", [*own, *forming, *sets])
    grown = 0
    for seed in range(6):
        done = subprocess.run(
            [program, str(seed), "20000"], capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == 0, done.stdout + done.stderr[-2000:]
        requests, _, grew, _ = map(int, done.stdout.split())
        assert requests == 20000
        grown += grew
    assert grown > 100
