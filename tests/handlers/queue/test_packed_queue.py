"""Batches of packed requests: what handlers get, what clients get, and whose fault is whose."""

import numpy as np
import pytest
import torch
from packed_front import PackedFront

from shunter.batching.queue.layout import EntryStatus
from shunter.batching.queue.tensor_spec import ANY, BYTES, TensorSpec
from shunter.handlers.queue.arena import Arena
from shunter.handlers.queue.packed_queue import PackedQueueWorker, keep_batch, packed_infer_of
from shunter.handlers.queue.tensor_config import UNPADDED, Padding, TensorConfigError

OK, BAD, FAILED = EntryStatus.OK, EntryStatus.BAD_REQUEST, EntryStatus.HANDLER_FAILED
IDS = TensorSpec("ids", "int64", (ANY,))
SUM = TensorSpec("sum", "int64", ())
TEXT = TensorSpec("text", BYTES, ())
TEXTS = TensorSpec("texts", BYTES, (ANY,))
GRID = TensorSpec("grid", "float32", (ANY, 2, ANY))


@pytest.fixture
def make():
    """Makes a packed queue and its worker."""
    made = []

    def build(inputs, outputs, infer, padding=UNPADDED, entries=8, device=None, **form):
        front = PackedFront(inputs, outputs, entries, part=50, **form)
        made.append(front)
        worker = PackedQueueWorker(front.end, infer, front.attach, padding, device)
        if worker._groups:  # how long these handlers take says nothing
            worker._groups.cost.observe = lambda cells, latency_ns: None
        made.append(worker)
        return made[-2:]

    yield build
    for each in reversed(made):
        each.close()


def ask(front, *requests):
    """Requests in entries that do not follow one another."""
    for number, tensors in enumerate(requests):
        front.ask(_entry(front, number), *tensors)
    return [_entry(front, number) for number in range(len(requests))]


def _entry(front, number):
    return (3 * number + 1) % front.entries


def answers(front, entries):
    """The only output of each."""
    return [front.answer(entry)[1][0].tolist() for entry in entries]


def test_requests_are_padded_with_zero_and_the_real_sizes_are_known(make):
    seen = {}

    def infer(batch):
        seen.update(ids=batch["ids"].tolist(), mask=batch.mask("ids").tolist())
        seen.update(sizes=batch.sizes("ids").tolist(), rows=batch.rows, n=len(batch))
        return batch.inputs[0].sum(1)

    front, worker = make([IDS], [SUM], infer)
    for _ in range(2):  # what the first left is not what the second gets
        entries = ask(front, [[1, 2, 3]], [[]], [[7]])
        assert front.run(worker, *entries) == [OK] * 3
    assert seen["ids"] == [[1, 2, 3], [0, 0, 0], [7, 0, 0]]
    assert seen["mask"] == [[True] * 3, [False] * 3, [True, False, False]]
    assert (seen["sizes"], seen["rows"], seen["n"]) == ([[3], [0], [1]], [1, 1, 1], 3)
    assert answers(front, entries) == [6, 0, 7]


def test_a_padded_batch_has_few_sizes_and_its_memory_stays(make):
    seen = []

    def infer(batch):
        [ids] = batch.inputs
        seen.append((tuple(ids.shape), ids.data_ptr()))
        return ids.sum(1)

    front, worker = make([IDS], [SUM], infer, Padding(buckets=(4, 8)))
    for lengths in [(8, 8, 8), (1, 2), (3, 4), (5, 1), (9, 1)]:
        entries = ask(front, *([[1] * n] for n in lengths))
        assert front.run(worker, *entries) == [OK] * len(lengths)
        assert answers(front, entries) == list(lengths)
    assert [shape for shape, _ in seen] == [(3, 8), (2, 4), (2, 4), (2, 8), (2, 9)]
    assert len({address for _, address in seen}) == 1


def test_every_dimension_of_any_size_is_padded(make):
    def infer(batch):
        assert batch["grid"].shape == (2, 4, 2, 4)
        assert batch.mask("grid", 2).tolist() == [[True] * 3 + [False], [True] + [False] * 3]
        return batch.split(batch["grid"] * 2, like="grid")

    front, worker = make([GRID], [GRID], infer, Padding(buckets=(4,)))
    grids = [np.random.rand(2, 2, 3).astype("f"), np.random.rand(4, 2, 1).astype("f")]
    entries = ask(front, *([g] for g in grids))
    assert front.run(worker, *entries) == [OK, OK]
    for entry, grid in zip(entries, grids, strict=True):
        assert np.array_equal(front.answer(entry)[1][0], 2 * grid)


def test_ragged_requests_come_as_they_are(make):
    def infer(batch):
        assert [each.shape for each in batch["grid"]] == [(2, 2, 3), (4, 2, 1)]
        with pytest.raises(TypeError, match="grid is not padded"):
            batch.mask("grid")
        return [each + 1 for each in batch["grid"]]

    front, worker = make([GRID], [GRID], infer, Padding(ragged=True))
    grids = [np.random.rand(2, 2, 3).astype("f"), np.random.rand(4, 2, 1).astype("f")]
    entries = ask(front, *([g] for g in grids))
    assert front.run(worker, *entries) == [OK, OK]
    for entry, grid in zip(entries, grids, strict=True):
        assert np.array_equal(front.answer(entry)[1][0], grid + 1)


@pytest.mark.parametrize("padding", [UNPADDED, Padding(buckets=(4, 32)), Padding(ragged=True)])
def test_a_batch_of_unequal_requests_runs_in_groups_where_that_costs_less(make, padding):
    seen = []

    def infer(batch):
        seen.append([tuple(each.shape) for each in batch["ids"]])
        if len(batch) == 1:
            raise ValueError("as a test wants it")
        return [each.sum() for each in batch["ids"]]

    front, worker = make([IDS], [SUM], infer, padding)
    if worker._groups:
        worker._groups.cost.fixed_ns, worker._groups.cost.per_cell_ns = 20e6, 1e6
    entries = ask(front, *([[1] * n] for n in (30, 2, 33, 3, 90, 4, 31)))
    front.ask_run(entries[3], front.requests.pack([[1, 1]])[:-1])
    worker.begin(front.give(*entries))
    front.finish(worker)
    apart = [[(4,)] * 2, [(33,)] * 3, [(90,)]]
    assert seen == ([[(n,) for n in (30, 2, 33, 90, 4, 31)]] if padding.ragged else apart)
    alone = OK if padding.ragged else FAILED
    words, queue = front.queue.words, front.queue
    said = [words[queue.entry(entry, "entry_status")] for entry in entries]
    assert said == [OK, OK, OK, BAD, alone, OK, OK]
    good = [entries[i] for i in (0, 1, 2, 5, 6)]
    assert answers(front, good) == [30, 2, 33, 4, 31]


def test_a_group_is_answered_before_the_next_one_runs(make):
    seen = []

    def infer(batch):
        words, queue = front.queue.words, front.queue
        early = [words[queue.entry(entry, "entry_early_ns")] > 0 for entry in entries]
        said = [words[queue.entry(entry, "entry_status")] for entry in entries]
        seen.append((early, said, words[queue.worker(0, "worker_early")]))
        if len(seen) == 2:
            front.ask(entries[1], [7] * 7)  # not the worker's any more
        return batch["ids"].sum(1)

    front, worker = make([IDS], [SUM], infer)
    worker._groups.cost.fixed_ns, worker._groups.cost.per_cell_ns = 20e6, 1e6
    entries = ask(front, *([[1] * n] for n in (90, 2, 40, 3)))
    batch = front.give(*entries)
    worker.begin(batch)
    assert seen == [
        ([False] * 4, [0] * 4, 0),
        ([False, True, False, True], [0, OK, 0, OK], 1),
        ([False, True, True, True], [0, OK, OK, OK], 2),
    ]
    words, queue = front.queue.words, front.queue
    assert not words[queue.worker(0, "done_number")]
    words[queue.entry(entries[1], "entry_status")] = 0  # as of a new request
    front.finish(worker)
    assert answers(front, [entries[i] for i in (0, 2, 3)]) == [90, 40, 3]
    assert words[queue.entry(entries[1], "entry_status")] == 0
    assert words[queue.worker(0, "done_number")] == 1
    entries = ask(front, [[1] * 5], [[1] * 6])
    assert front.run(worker, *entries) == [OK, OK] and answers(front, entries) == [5, 6]


@pytest.mark.parametrize("ragged", [False, True])
def test_requests_that_are_batches_get_their_own_rows(make, ragged):
    def infer(batch):
        assert batch.rows == [2, 1, 3] and batch.sizes("x").shape == (6, 0)
        [x, words] = batch.inputs
        assert words == [b"a", b"b", b"c", b"d", b"e", b"f"]
        return ([each * 2 for each in x] if ragged else x * 2), [w + b"!" for w in words]

    x = TensorSpec("x", "int16", ())
    spec = [x, TEXT]
    front, worker = make(spec, spec, infer, Padding(ragged=ragged), batched=True)
    requests = [([1, 2], [b"a", b"b"]), ([3], [b"c"]), ([4, 5, 6], [b"d", b"e", b"f"])]
    entries = ask(front, *requests)
    assert front.run(worker, *entries) == [OK] * 3
    for entry, (numbers, words) in zip(entries, requests, strict=True):
        rows, (y, texts) = front.answer(entry)
        assert rows == len(numbers) and y.tolist() == [2 * n for n in numbers]
        assert texts.tolist() == [w + b"!" for w in words]


def test_byte_strings_in_lists(make):
    def infer(batch):
        assert batch["texts"] == [[b"a", b"bcd"], [], [b""]]
        return {"texts": [[t.decode() * 2 for t in texts] for texts in batch["texts"]]}

    front, worker = make([TEXTS], [TEXTS], infer)
    entries = ask(front, [[b"a", b"bcd"]], [[]], [[b""]])
    assert front.run(worker, *entries) == [OK] * 3
    assert answers(front, entries) == [[b"aa", b"bcdbcd"], [], [b""]]


def test_inference_gets_the_inputs_one_by_one(make):
    class Own:
        def inference(self, ids, texts):
            return ids.sum(1) + torch.tensor([len(t) for t in texts])

    front, worker = make([IDS, TEXT], [SUM], packed_infer_of(Own()))
    entries = ask(front, ([1, 2], b"abc"), ([5], b""))
    assert front.run(worker, *entries) == [OK] * 2
    assert answers(front, entries) == [6, 5]


@pytest.mark.parametrize("handler", [None, object()])
def test_a_handler_that_cannot_is_named(handler):
    with pytest.raises(TensorConfigError, match=r"has neither infer\(batch\) nor inference"):
        packed_infer_of(handler)


def test_a_malformed_request_leaves_its_batch_alone(make):
    sizes = []

    def infer(batch):
        sizes.append(len(batch))
        return batch["ids"].sum(1), batch["text"]

    front, worker = make([IDS, TEXT], [SUM, TEXT], infer)
    entries = ask(front, *([[n], b"text"] for n in range(6)))
    run = front.requests.pack([[9], b"text"])
    front.ask_run(entries[0], run[:-1])
    front.ask_run(entries[1], run, rows=2)
    front.ask_run(entries[3], run[:40], rows=1)
    run[-8] = 5  # longer than there is
    front.ask_run(entries[4], run)
    assert front.run(worker, *entries) == [BAD, BAD, OK, BAD, BAD, OK]
    assert sizes == [2]
    assert [front.answer(entries[i])[1][0].tolist() for i in (2, 5)] == [2, 5]
    front.ask_run(entries[0], run)
    assert front.run(worker, entries[0]) == [BAD] and sizes == [2]


@pytest.mark.parametrize(
    ("dtype", "sizes", "status"),
    [
        (BYTES, (1 << 14, 0), OK),  # of byte strings the handler gets so many lists
        (BYTES, (1 << 15, 0), BAD),
        (BYTES, (0, 1 << 28), BAD),
        ("int32", (1 << 14, 0), OK),
        ("int32", (1 << 15, 0), BAD),
    ],
)
def test_sizes_beside_a_size_of_0_are_no_larger_than_a_request(make, dtype, sizes, status):
    spec, lengths = TensorSpec("x", dtype, (ANY, ANY)), []

    def infer(batch):
        lengths.extend(map(len, batch["x"]))
        return torch.zeros(len(batch), dtype=torch.int64)

    front, worker = make([spec], [SUM], infer, request_bytes=1 << 16)
    run = front.requests.pack([np.empty((0, 0), object)])
    np.frombuffer(run, "<u4")[4:6] = sizes
    front.ask_run(1, run)
    assert front.run(worker, 1) == [status]
    assert lengths == ([sizes[0]] if status == OK else [])


@pytest.mark.parametrize("ragged", [False, True])
def test_byte_strings_that_are_malformed_in_one_tensor_are_out_of_all(make, ragged):
    def infer(batch):
        assert batch["text"] == [b"0", b"2", b"4"]
        assert batch["texts"] == [[b"0"], [b"2", b"2"], [b"4"] * 4]
        firsts = [int(ids[0]) for ids in batch["ids"]]
        return batch["text"], batch["texts"], torch.tensor(firsts)

    spec = [TEXT, IDS, TEXTS]
    front, worker = make(spec, [TEXT, TEXTS, SUM], infer, Padding(ragged=ragged))
    tensors = [(b"%d" % n, [n] * (n + 1), [b"%d" % n] * max(1, n)) for n in range(5)]
    entries = ask(front, *tensors)
    runs = [front.requests.pack(each) for each in tensors]
    runs[1][runs[1].index(b"1")] = 0xEE  # only what is in it: no matter
    runs[1][64:68] = b"\2\0\0\0"  # of the first tensor
    runs[3][-5:-1] = b"\0\0\0\0"  # of the last
    for number in (1, 3):
        front.ask_run(entries[number], runs[number])
    assert front.run(worker, *entries) == [OK, BAD, OK, BAD, OK]
    for number in (0, 2, 4):
        _, (text, texts, first) = front.answer(entries[number])
        assert (text, first) == (b"%d" % number, number)
        assert texts.tolist() == tensors[number][2]


def test_who_is_the_cause_of_a_failure_gets_it_alone(make, caplog):
    seen = []

    def infer(batch):
        [ids] = batch.inputs
        seen.append(ids.sum(1).tolist())
        ids *= 0  # what it writes, nobody else gets
        if 3 in seen[-1]:
            raise FileNotFoundError("three")
        return torch.tensor(seen[-1])

    front, worker = make([IDS], [SUM], infer)
    entries = ask(front, *([[n]] for n in range(1, 5)))
    front.may_run_twice(entries[0], entries[2])
    assert front.run(worker, *entries) == [OK, FAILED, FAILED, FAILED]
    assert seen == [[1, 2, 3, 4], [1], [3]]
    assert answers(front, entries[:1]) == [1]
    assert [r.getMessage() for r in caplog.records] == [
        "The handler failed on a batch of 4.", "The handler failed on a batch of 1.",
    ]  # fmt: skip


def test_a_handler_may_refuse_requests(make):
    refuse = [1]

    def infer(batch):
        for request in refuse:
            batch.refuse(request)
        with pytest.raises(IndexError):
            batch.refuse(len(batch))
        return batch["text"] if len(refuse) == 1 else None

    front, worker = make([TEXT], [TEXT], infer)
    entries = ask(front, [b"a"], [b"b"], [b"c"])
    assert front.run(worker, *entries) == [OK, BAD, OK]
    assert [front.answer(entries[i])[1][0].tolist() for i in (0, 2)] == [b"a", b"c"]
    refuse = [0, 1, 2]
    assert front.run(worker, *entries) == [BAD] * 3


def test_an_answer_that_is_too_long_fails_alone_and_is_logged(make, caplog):
    front, worker = make([IDS], [TEXT], lambda b: [b"x" * n for n in b["ids"][:, 0].tolist()],
                         answer_bytes=128)  # fmt: skip
    entries = ask(front, [[60]], [[61]], [[0]])
    assert front.run(worker, *entries) == [OK, FAILED, OK]
    assert answers(front, entries[::2]) == [b"x" * 60, b""]
    [record] = caplog.records
    assert record.getMessage() == "An answer has 129 bytes, and answer_bytes is 128."


def test_what_another_answer_left_is_not_sent(make):
    spec = [TensorSpec("a", "int8", (ANY,)), TensorSpec("b", "int8", (ANY,))]
    front, worker = make(spec, spec, lambda batch: tuple(batch.inputs))
    front.results[0][:] = 0xEE
    [entry] = ask(front, ([1], [2]))
    assert front.run(worker, entry) == [OK]
    assert bytes(front.results[0][entry, :129]) == bytes(front.requests.pack([[1], [2]]))


@pytest.mark.parametrize("fails", ["memory", "handler", ""])
def test_a_group_of_which_each_was_tried_alone_says_nothing_of_costs(make, fails):
    spec = TensorSpec("x", "int8", (ANY, ANY))

    def infer(batch):
        if fails == "handler" and len(batch) == 2:
            raise ValueError("as a test wants it")
        return batch["x"].sum((1, 2), dtype=torch.int64)

    front, worker = make([spec], [SUM], infer, request_bytes=8192)
    seen = []
    worker._groups.cost.observe = lambda cells, took: seen.append(cells)
    long = 5000 if fails == "memory" else 50
    entries = ask(front, [np.ones((1, long), np.int8)], [np.ones((long, 1), np.int8)])
    front.may_run_twice(*entries)
    assert front.run(worker, *entries) == [OK, OK] and answers(front, entries) == [long, long]
    assert seen == ([] if fails else [2 * 50 * 50])
    if fails == "memory":
        assert worker._inputs.cells == 2 * 5000  # nothing was made of both


@pytest.mark.parametrize("count", [1, 2])
def test_sizes_that_would_need_too_much_when_padded(make, caplog, count):
    spec = TensorSpec("x", "int8", (ANY, ANY))
    seen = []

    def infer(batch):
        seen.append(tuple(batch["x"].shape))
        return batch["x"].sum((1, 2))

    padding = UNPADDED if count == 2 else Padding(buckets=(4096,))
    front, worker = make([spec], [SUM], infer, padding, request_bytes=8192)
    entries = ask(front, [np.ones((1, 5000), np.int8)], [np.ones((5000, 1), np.int8)])[:count]
    if count == 2:  # together they would be 50 MB
        assert front.run(worker, *entries) == [OK, OK]
        assert answers(front, entries) == [5000, 5000]
        assert seen == [(1, 1, 5000), (1, 5000, 1)] and not caplog.records
    else:
        assert front.run(worker, *entries) == [BAD] and not seen
        assert "padded 20480000 bytes; at most 131072" in caplog.text


def test_requests_that_have_no_memory_together_run_one_by_one(make, monkeypatch, caplog):
    room = Arena._room

    def little(self, size):
        if size > 100:
            raise RuntimeError("not enough memory")
        return room(self, size)

    monkeypatch.setattr(Arena, "_room", little)
    front, worker = make([IDS], [SUM], lambda batch: batch["ids"].sum(1))
    entries = ask(front, [[1] * 10], [[2] * 10], [[3] * 20])
    assert front.run(worker, *entries) == [OK, OK, FAILED]
    assert answers(front, entries[:2]) == [10, 20]
    assert [r.getMessage() for r in caplog.records] == ["A request is refused: not enough memory"]


WRONG = [
    (None, "sum: the handler gave a NoneType; a tensor, or a list"),
    (torch.zeros(3, dtype=torch.int64), r"sum: the handler gave torch.int64 \[3\], where the"),
    (torch.zeros(2, 1, dtype=torch.int64), r"declares torch.int64 \[\] for each of 2 rows"),
    (torch.zeros(2), "gave torch.float32"),
    ([torch.tensor(1)], "a list of 1; a tensor, or a list of one for each of 2 requests"),
    ([torch.tensor(1), "a"], "a str where a tensor belongs"),
    ((torch.zeros(2), 3), "no 1 outputs, but a tuple of 2"),
    ({"other": 1}, r"gave \['other'\]; the model has \['sum'\]"),
]


@pytest.mark.parametrize(("found", "message"), WRONG, ids=[m for _, m in WRONG])
def test_what_is_no_output_is_an_error_and_said(make, caplog, found, message):
    front, worker = make([IDS], [SUM], lambda _: found)
    entries = ask(front, [[1]], [[2]])
    assert front.run(worker, *entries) == [FAILED, FAILED]
    [record] = caplog.records
    with pytest.raises(Exception, match=message):
        raise record.exc_info[1]


WRONG_TEXTS = [
    (b"ab", "the handler gave a bytes; a list with an element for each of 2 rows"),
    ([[b"a"]], "a list of 1; a list with an element"),
    ([b"a", [b"b"]], "a bytes where a list belongs"),
    ([[b"a"], [3]], "a int where a byte string belongs"),
    ([[[b"a"]], [[b"a"]]], "a list of 1 where a byte string belongs"),
]


@pytest.mark.parametrize(("found", "message"), WRONG_TEXTS, ids=[m for _, m in WRONG_TEXTS])
def test_what_is_no_byte_string_is_an_error_and_said(make, caplog, found, message):
    front, worker = make([IDS], [TEXTS], lambda _: found)
    entries = ask(front, [[1]], [[2]])
    assert front.run(worker, *entries) == [FAILED, FAILED]
    with pytest.raises(Exception, match=message):
        raise caplog.records[0].exc_info[1]


def test_rows_of_a_request_have_lists_of_one_length(make, caplog):
    front, worker = make([IDS], [TEXTS], lambda _: [[b"a"], []], batched=True)
    [entry] = ask(front, [[[1], [2]]])
    assert front.run(worker, entry) == [FAILED]
    assert "[0]; the model has [-1]" in caplog.text


def test_results_of_another_device_or_type_are_copied(make):
    front, worker = make(
        *([IDS], [TensorSpec("y", "bfloat16", (2,))]),
        lambda batch: torch.stack([batch["ids"].sum(1).float()] * 2).T,
    )
    entries = ask(front, [[1, 2]], [[3]])
    assert front.run(worker, *entries) == [OK, OK]
    assert answers(front, entries) == [[3, 3]] * 2


def test_a_kept_batch_is_as_it_was(make):
    def infer(batch):
        again = keep_batch(batch)
        batch["ids"].zero_()
        [kept] = again()
        return kept["ids"].sum(1), kept["text"]

    front, worker = make([IDS, TEXT], [SUM, TEXT], infer)
    entries = ask(front, ([1, 2], b"a"), ([3], b"b"))
    assert front.run(worker, *entries) == [OK, OK]
    assert answers(front, entries) == [3, 3]


def test_a_batch_that_makes_no_sense_ends_the_worker(make):
    front, worker = make([IDS], [SUM], lambda batch: batch["ids"].sum(1), entries=2)
    entries = ask(front, [[1]], [[2]])
    front.queue.words[front.queue.entry(entries[0], "entry_pieces")] = 1 << 20
    with pytest.raises(OSError, match="inputs of a batch"):
        front.run(worker, *entries)


def test_a_worker_with_a_device_of_its_own_copies_there(make):
    def infer(batch):
        return batch["ids"].sum(1) + batch.mask("ids").sum(1)

    front, worker = make([IDS, TEXT], [SUM], infer, device=torch.device("cpu"))
    for _ in range(2):
        entries = ask(front, ([1, 2], b"a"), ([3], b"b"))
        assert front.run(worker, *entries) == [OK, OK]
        assert answers(front, entries) == [5, 4]


BYTE = TensorSpec("byte", "int8", (ANY,))
MARK = 0x5A
GAPS = [(1, 0, 1), (63, 1, 65), (64, 3, 0), (5, 2, 5), (0, 0, 1)]
"""Bytes of two tensors with some strings between them: gaps of 0 to 63 bytes."""


def marked(packing, tensors):
    """A run with something in the gaps between its tensors, and how much there is of that."""
    run = packing.pack(tensors)
    _, places = packing.places(run)
    ends = [packing.header, *(each.offset + each.bytes for each in places)]
    count = 0
    for end, place in zip(ends, places, strict=False):
        run[end : place.offset] = bytes([MARK]) * (place.offset - end)
        count += place.offset - end
    return run, count


@pytest.mark.parametrize(
    "padding", [UNPADDED, Padding(buckets=(8, 100)), Padding(ragged=True)], ids=str
)
def test_what_lies_between_tensors_reaches_no_handler_and_no_other_client(make, padding):
    specs = [BYTE, TEXTS, TensorSpec("other", "int8", (ANY,))]
    seen = []

    def infer(batch):
        numbers = [batch["byte"], batch["other"]]
        tensors = [each for given in numbers for each in (given if padding.ragged else [given])]
        memory = b"".join(bytes(each.untyped_storage()) for each in tensors if each.numel())
        seen.append((memory, str([batch[name] for name in ("byte", "texts", "other")])))
        return [torch.zeros(n, dtype=torch.int8) for n in range(len(batch))], [
            ["x"] * n for n in range(len(batch))
        ], [torch.ones(3, dtype=torch.int8)] * len(batch)

    front, worker = make(specs, specs, infer, padding)
    requests = [([1] * a, ["t"] * b, [2] * c) for a, b, c in GAPS]
    for is_marked in (True, False):
        entries = ask(front, *requests)
        front.results[0][:] = MARK  # of another client's answer
        counts = 0
        for entry, request in zip(entries, requests, strict=True):
            run, count = marked(front.requests, request)
            counts += count
            if is_marked:
                front.ask_run(entry, run)
                assert front.answers.unpack(run)[1][2].tolist() == request[2]  # as clients do
        assert counts > 200
        assert front.run(worker, *entries) == [OK] * len(entries)
        for n, entry in enumerate(entries):
            size = front.queue.words[front.queue.entry(entry, "entry_result_bytes")]
            whole = front.answers.pack([[0] * n, ["x"] * n, [1] * 3])
            assert front.results[0][entry, :size].tobytes() == whole  # also between its tensors
    assert seen[0][1] == seen[1][1]
    assert bytes([MARK]) not in seen[0][0]
