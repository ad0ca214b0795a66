"""The golden tables: inputs and expected outputs of the rules that exist in several languages.

``python tests/golden/make_golden.py`` compares the committed tables with what the Python rules
give now, ``--write`` replaces them. Python, Java and C are each tested against the tables, so a
change of a rule shows as a change of a table, and a copy that was forgotten fails its test.

Shapes: a table is ``{"columns": [name, ...], "rows": [[value, ...], ...]}``, the last column being
the result; null stands for "none". Classes are by their index, and those of ``classes.json`` have
two results: the value, and the message of the error. ``threshold.json``, ``latency.json``,
``release.json`` and ``classes.json`` hold such tables by name. ``page.json`` maps the offset of
every 8-byte word of the example page that is not zero to its bytes in hexadecimal, in the order of
memory.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

from shunter.batching.forming import classes, release
from shunter.batching.forming.latency import LatencyFit
from shunter.batching.forming.threshold import AdaptiveThreshold, hold_ns, step
from shunter.batching.page import front_end_page
from shunter.batching.page.control_page import ControlPage
from shunter.batching.page.layout import (
    CLASSES,
    GROUP_STRIDE,
    HEADER_FIELDS,
    HEADER_SIZE,
    PAGE_SIZE,
    SLOT_FIELDS,
    SLOT_SIZE,
    time_bucket,
)
from shunter.batching.page.layout import SLOTS_OFFSET as FIRST_SLOT
from shunter.batching.page.records import (
    FrontEndState,
    GroupCommands,
    NetworkTelemetry,
    SlotCommands,
    SlotNetwork,
)
from shunter.batching.page.slices import of_cpus

HERE = Path(__file__).parent
Table = dict[str, Any]


def table(columns: str, rows: Any) -> Table:
    return {"columns": columns.split(), "rows": [list(row) for row in rows]}


# ---- threshold


def threshold_tables() -> dict[str, Table]:
    """Single steps over a grid, then runs in which each result is the next input."""
    grid = itertools.product(
        (1.0, 1.5, 2.0, 7.999, 8.0, 100.1, 128.0),
        (0.0, 1.0, 2.0, 2.25, 8.0, 9.0, 1000.0),
        (0.0, 0.5, 0.999999),
        (1.0, 8.0, 128.0),
    )
    rows = [(t, c, a, cap, step(t, c, a, cap)) for t, c, a, cap in grid if t <= cap]
    choose = random.Random(20240501)
    for _ in range(12):
        alpha, cap = int(choose.random() * 1e6) / 1e6, 1.0 + int(choose.random() * 300)
        t, load, workers = 1.0, choose.random() * 60, 1 + int(choose.random() * 4)
        for _ in range(25):
            c = float(int(choose.random() * load)) / workers
            following = step(t, c, alpha, cap)
            rows.append((t, c, alpha, cap, following))
            t = following
    return {
        "step": table("t c alpha cap next", rows),
        "adaptive": table("events states", adaptive_rows()),
        "hold_ns": table("worth_ns max_wait_ns hold_ns", hold_rows()),
    }


def adaptive_rows() -> Any:
    """Runs of one model.

    Events: [0, now, size, waiting, arrivals, hold] answered, [1, now, arrivals] settled, [2, now,
    free workers, free since] asked, [3] held; after each the value, the returning share, and what
    is worth it.
    """
    choose = random.Random(20240503)
    for run in range(20):
        adaptive, clients = AdaptiveThreshold(), 1 + run % 9
        hold = 3_000_000 if run > 3 else 0
        now, arrivals, events, states = 1000, clients, [], []
        for _ in range(40):
            now += 1_000_000 + int(choose.random() * 5e6)
            size = 1 + int(choose.random() * clients)
            came = size if choose.random() < 0.9 else int(choose.random() * size)
            batch = [[0, now, size, clients - size, arrivals, hold], [2, now, 1 + run % 2, now]]
            batch += [[3]] if choose.random() < 0.3 else []
            arrivals += came
            batch += [[1, now + 500_000, arrivals], [2, now + 500_000, 1, now - run % 3]]
            now += 4_000_000
            batch.append([1, now, arrivals])
            for event in batch:
                worth = 0.0
                if event[0] == 0:
                    adaptive.answered(*event[1:])
                elif event[0] == 1:
                    adaptive.settle(*event[1:])
                elif event[0] == 2:
                    worth = adaptive.worth(*event[1:])
                else:
                    adaptive.held()
                events.append(event)
                states.append([adaptive.value, adaptive.returning, worth])
        yield events, states


def hold_rows() -> Any:
    for fixed, wait in itertools.product(
        (0.0, 399_999.0, 400_000.0, 4e6, 1e12), (0, 1_000, 300_000, 5_000_000)
    ):
        yield fixed, wait, hold_ns(fixed, wait)


# ---- latency


def fit_rows() -> Any:
    """Runs of one model: sizes and latencies, and what the fit knows after each."""
    choose = random.Random(20240505)
    for run in range(12):
        fit, observed, known = LatencyFit(), [], []
        for i in range(60):
            size = 1 + int(choose.random() * (1, 4, 33)[run % 3])
            slow = 1.0 if i < 40 else 2.5
            latency = int((4e6 + 3e6 * size) * slow * (0.9 + 0.2 * choose.random()))
            latency *= 8 if choose.random() < 0.05 else 1
            latency = latency // 100 if run % 4 == 3 and i > 30 else latency
            fit.observe(size, latency)
            observed.append([size, latency])
            known.append([fit.fixed_ns, fit.per_request_ns, fit.error_ns, float(fit.worth_ns)])
        yield observed, known


def latency_tables() -> dict[str, Table]:
    times = sorted({abs(2**k + d) for k in range(17, 36) for d in (-1, 0, 1)} | {0, 1, 10**15})
    return {
        "fit": table("observed known", fit_rows()),
        "time_bucket": table("ns bucket", ((ns, time_bucket(ns)) for ns in times)),
    }


# ---- release


def should_release_rows() -> Any:
    grid = (
        (0, 1, 3, 4, 40),
        (0, 999, 1000, 1001),
        (None, -5, 1499, 1500, 1501, 90_000),
        (1.0, 3.25, 128.0),
        (0, 4),
    )
    for queued, oldest, slack, threshold, free in itertools.product(*grid):
        args = (queued, oldest, slack, threshold, 1000, free, 1200, 300)
        yield (*args, release.should_release(*args))
    for max_wait in (0, 1):
        args = (1, 0, None, 8.0, max_wait, 8, 0, 0)
        yield (*args, release.should_release(*args))


def split_rows() -> Any:
    lists = [[], [0], [1], [8], [0, 4], [4, 4, 4], [4, 8, 4], [1, 2, 3], [32, 1, 1, 32], [7, 7, 5]]
    for caps in lists:
        for queued in sorted({0, 1, 2, 3, 5, 10, 17, sum(caps), max(0, sum(caps) - 1), 1000}):
            yield queued, caps, release.split(queued, caps)
    choose = random.Random(20240502)
    for _ in range(150):
        caps = [int(choose.random() * 33) for _ in range(1 + int(choose.random() * 8))]
        queued = int(choose.random() * (sum(caps) + 5))
        yield queued, caps, release.split(queued, caps)


def may_send_ahead_rows() -> Any:
    flags = list(itertools.product((False, True), repeat=3))
    numbers = [(0, 1.0), (1, 1.0), (4, 4.5), (5, 4.5), (8, 99.0), (7, 99.0)]
    places = [(1, 1, 0), (1, 1, 1), (0, 1, 0), (1, 0, 0), (2, 1, 0)]
    for (queued, threshold), place, flag in itertools.product(numbers, places, flags):
        args = (queued, threshold, 8, *place, *flag)
        yield (*args, release.may_send_ahead(*args))


def wake_rows() -> Any:
    columns = ((0, 1, 4999, 5000, 9000), (None, -1, 0, 1600, 2000, 80_000), (0, 5000), (0, 1500))
    for oldest, slack, max_wait, predicted in itertools.product(*columns):
        args = (oldest, slack, max_wait, predicted, 100)
        yield (*args, release.wake_after_us(*args))


def split_by_latency_rows() -> Any:
    choose = random.Random(20240506)
    for _ in range(150):
        count = 1 + int(choose.random() * 6)
        caps = [int(choose.random() * 33) for _ in range(count)]
        fixed = [int(choose.random() * 1e7) for _ in range(count)]
        per = [int(choose.random() * 4) * 1_000_000 for _ in range(count)]
        args = (int(choose.random() * (sum(caps) + 5)), caps, fixed, per)
        yield (*args, release.split_by_latency(*args))


def fit_deadlines_rows() -> Any:
    choose = random.Random(20240507)
    for _ in range(400):
        cap, waiting = 1 + int(choose.random() * 16), 1 + int(choose.random() * 40)
        count = min(waiting, 2 * cap + 1)
        slacks = sorted(int(choose.random() * 200) - 10 for _ in range(count))
        args = (slacks, waiting, 1 + int(choose.random() * min(cap, waiting)), cap)
        next_free = (0, 10**9, int(choose.random() * 60))[int(choose.random() * 3)]
        args += (int(choose.random() * 30), int(choose.random() * 8), next_free)
        yield (*args, list(release.fit_deadlines(*args)))


def staggered_rows() -> Any:
    choose = random.Random(20240508)
    for _ in range(120):
        cap, fixed, per = 1 + int(choose.random() * 33), int(choose.random() * 40), 0
        per = int(choose.random() * 8)
        busy = [int(choose.random() * 300) for _ in range(int(choose.random() * 4))]
        yield cap, fixed, per, busy, release.staggered_size(cap, fixed, per, busy)


def too_late_rows(rule: Any) -> Any:
    for now, deadline in itertools.product((0, 10**15), (-5, 0, 1, 900, 10**9)):
        for needed in (0, 1, 2, 899, 900, 901, 3_600_000_000_000):
            args = (now, now + deadline, needed)
            yield (*args, rule(*args))


def predicted_wait_rows() -> Any:
    for ahead, capacity in itertools.product((0, 1, 31, 32, 33, 1000), (1, 32, 48)):
        args = (ahead, capacity, 50_000_000, 20_000_001)
        yield (*args, release.predicted_wait_ns(*args))


def release_tables() -> dict[str, Table]:
    limits = "max_wait_us free_capacity predicted_us margin_us"
    return {
        "should_release": table(
            f"queued oldest_wait_us slack_us threshold {limits} release", should_release_rows()
        ),
        "split": table("queued caps sizes", split_rows()),
        "split_by_latency": table(
            "queued caps fixed_ns per_request_ns sizes", split_by_latency_rows()
        ),
        "fit_deadlines": table(
            "slacks_ns waiting size cap fixed_ns per_request_ns next_free_ns skip_take",
            fit_deadlines_rows(),
        ),
        "is_too_late": table(
            "now_ns deadline_ns soonest_ns too_late", too_late_rows(release.is_too_late)
        ),
        "too_late_at_ns": table(
            "now_ns deadline_ns least_ns at_ns", too_late_rows(release.too_late_at_ns)
        ),
        "staggered_size": table("cap fixed_ns per_request_ns busy_ns size", staggered_rows()),
        "predicted_wait_ns": table(
            "ahead capacity batch_ns busy_ns wait_ns", predicted_wait_rows()
        ),
        "may_send_ahead": table(
            "queued threshold cap in_flight ahead_limit free_workers "
            "strict running_strict strict_traffic ahead",
            may_send_ahead_rows(),
        ),
        "wake_after_us": table(
            "oldest_wait_us slack_us max_wait_us predicted_us margin_us wake_us", wake_rows()
        ),
    }


# ---- classes

# fmt: off
CLASS_TEXTS = (
    "strict", "STRICT", " Strict\t", "best-effort", "best_effort", "Best-Effort", "BEST_EFFORT  ",
    "", " ", "foo", "besteffort", "best effort", "best-effort,strict", "strict;", "0",
    "strickt", "STRIKT", "best-efort", "effort", "best", "restrict", "bestt-effortt",
    "\N{LATIN SMALL LETTER LONG S}trict", "strict\N{NO-BREAK SPACE}", "strict\N{EM SPACE}",
)
DEADLINE_TEXTS = (
    "40", " 40\t", "0.25", "40.5", "007", "0.000001", "0.0000001", "86400000", "86400000.0",
    "16.666666666", "0.1", "33.3", "123456.789", "999999.999999999", "1.1", "0.000000001",
    "", " ", "0", "0.0", "foo", "-1", "+1", "1e3", "nan", "inf", "Infinity", "0x10", "1_000",
    "86400000.000001", "86400001", "999999999", "0000000040", ".5", "5.", "1,5", "40ms", "4 0",
    "\N{ARABIC-INDIC DIGIT FOUR}", "1.0000000001", "\N{NO-BREAK SPACE}4", "\N{EM SPACE}4",
)
# fmt: on


def stated(parse: Any, text: str) -> tuple[int | None, str | None]:
    try:
        return int(parse(text)), None
    except ValueError as error:
        return None, str(error)


def class_tables() -> dict[str, Table]:
    return {
        "class": table(
            "text class message", ((t, *stated(classes.parse_class, t)) for t in CLASS_TEXTS)
        ),
        "deadline": table(
            "text deadline_ns message",
            ((t, *stated(classes.parse_deadline_ns, t)) for t in DEADLINE_TEXTS),
        ),
    }


# ---- page

IDENTITY = {
    "slot_sequence": 2,
    "slot_state": 1,
    "generation": 7,
    "registered_batch_size": 32,
    "registered_max_wait_us": 5000,
    "queue_capacity": 100,
    "group_count": 2,
    "slo_us": 40000,
}
MODEL_NAME = "modèle"
MODEL_VERSION = "1.0"
DEFAULT_VERSION = "2.0"
UPDATED_NS = 123_456_789
OWNER_PID = 4242
CREATED_UNIX_NS = 1_700_000_000_000_000_000
HEARTBEAT_NS = 5_000_000_000
FRONT_END_WANTED = 1 << 32 | 17
CONTROLLER = (4243, 3, 6_000_000_000)
COMMANDS = SlotCommands(500_000, 128_000, 0, 2500, 1, 1_000_000, 1, 3_000_000, 250_000, 1, 1500)
FRONT_END = FrontEndState(4244, 7_000_000_000, 8083, 5, 2_000_000, 4, 768, 700, 900)
COUNTERS = {"requests": 11, "drop_tag": 22, "bytes_in": 1 << 40}
NETWORK = SlotNetwork(2, 256, 250, 3, 4, 16)
NETWORK_TELEMETRY = NetworkTelemetry((50, 51), (40, 41), network_attainment_ppm=(-1, 990_000))
GROUP_COMMANDS = (
    GroupCommands(16, (1000, 500), (0, 1)),
    GroupCommands(0, (0, 1000), (1, 0), 2, 4, 8, of_cpus([0, 63, 64, 511]), "MIG-1/2"),
)


def jvm_words() -> dict[int, int]:
    """Offset in slot 0 to value, for what the server writes but the texts.

    Telemetry word k after ``updated_ns`` (k from 1) is 1000 + k; word k (from 0) of worker group g
    is 100 * (g + 1) + k for the two groups in use.
    """
    words = {SLOT_FIELDS[name].offset: value for name, value in IDENTITY.items()}
    start, groups = SLOT_FIELDS["updated_ns"].offset, SLOT_FIELDS["group_ready"].offset
    words[start] = UPDATED_NS
    last = SLOT_FIELDS["strict_batch_ns"]
    count = (last.offset - start) // 8 + last.field.count
    words |= {start + 8 * k: 1000 + k for k in range(1, count)}
    for group in range(IDENTITY["group_count"]):
        base = groups + group * GROUP_STRIDE
        words |= {base + 8 * k: 100 * (group + 1) + k for k in range(10)}
    return words


def fill_slot(page: ControlPage) -> None:
    """Write slot 0 as the server would."""
    base = FIRST_SLOT // 8
    texts = {
        "model_name": MODEL_NAME,
        "model_version": MODEL_VERSION,
        "default_version": DEFAULT_VERSION,
    }
    for name, text in texts.items():
        placed = SLOT_FIELDS[name]
        encoded = memoryview(text.encode().ljust(placed.field.width, b"\0")).cast("q")
        for i, word in enumerate(encoded):
            page.words[base + placed.offset // 8 + i] = word
    for offset, value in jvm_words().items():
        page.words[base + offset // 8] = value


def make_page(path: Path) -> ControlPage:
    """The example page: header, slot 0 and its commands."""
    page = ControlPage.create(
        path, owner_pid=OWNER_PID, created_unix_ns=CREATED_UNIX_NS, now_ns=HEARTBEAT_NS
    )
    fill_slot(page)
    page.write_commands(0, COMMANDS, GROUP_COMMANDS)
    page.write_controller(*CONTROLLER)
    page.want_front_end(FRONT_END_WANTED)
    front_end_page.write_names(page, tuple(COUNTERS))
    front_end_page.write(page, FRONT_END, tuple(COUNTERS.values()))
    front_end_page.write_network(page, 0, NETWORK, NETWORK_TELEMETRY)
    return page


def page_words(content: bytes) -> dict[str, str]:
    assert len(content) == PAGE_SIZE
    words = {at: content[at : at + 8] for at in range(0, PAGE_SIZE, 8)}
    return {str(at): word.hex() for at, word in words.items() if any(word)}


def expected_dump() -> dict[str, str]:
    """The lines ``NAME VALUE`` that PageTool prints for the example page.

    Names are those of the layout; ``[g]`` follows for the worker group where there are several,
    then ``[i]`` for the word where a field has several. Counters of the front end are
    ``counter.NAME``.
    """
    with tempfile.TemporaryDirectory() as folder, make_page(Path(folder) / "control") as page:
        header = page.words[: HEADER_SIZE // 8].tolist()
        slot = page.words[FIRST_SLOT // 8 : (FIRST_SLOT + SLOT_SIZE) // 8].tolist()
    lines = {name: str(header[placed.offset // 8]) for name, placed in HEADER_FIELDS.items()}
    for name, placed in SLOT_FIELDS.items():
        for group, i in itertools.product(range(placed.section.repeat), range(placed.field.count)):
            at = placed.offset + group * GROUP_STRIDE + 8 * i
            of_group = f"[{group}]" if placed.section.repeat > 1 else ""
            of_word = f"[{i}]" if placed.field.count > 1 else ""
            lines[name + of_group + of_word] = str(slot[at // 8])
    lines |= {f"counter.{name}": str(value) for name, value in COUNTERS.items()}
    return lines | {"model_name": MODEL_NAME, "model_version": MODEL_VERSION}


def page_table() -> Table:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "control"
        make_page(path).close()
        return {"page_size": PAGE_SIZE, "classes": CLASSES, "words": page_words(path.read_bytes())}


# ---- files


def render(value: Any, depth: int = 0) -> str:
    """JSON with one table row, or one entry, a line."""
    inner = "  " * (depth + 1)
    if isinstance(value, dict):
        parts = [f"{json.dumps(key)}: {render(entry, depth + 1)}" for key, entry in value.items()]
        return "{\n" + ",\n".join(inner + part for part in parts) + "\n" + "  " * depth + "}"
    if isinstance(value, list) and value and isinstance(value[0], list):
        parts = [inner + json.dumps(row) for row in value]
        return "[\n" + ",\n".join(parts) + "\n" + "  " * depth + "]"
    return json.dumps(value)


def files() -> dict[str, str]:
    """Text of every golden file by name."""
    return {
        "threshold.json": render(threshold_tables()) + "\n",
        "latency.json": render(latency_tables()) + "\n",
        "release.json": render(release_tables()) + "\n",
        "classes.json": render(class_tables()) + "\n",
        "page.json": render(page_table()) + "\n",
    }


def main(argv: list[str] | None = None) -> int:
    """Compare the committed tables, or with ``--write`` replace them. Returns the exit status."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--write", action="store_true")
    write = parser.parse_args(argv).write
    stale = 0
    for name, text in files().items():
        path = HERE / name
        if write:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            print(f"{path} is stale: run python {Path(__file__).name} --write", file=sys.stderr)
            stale = 1
    return stale


if __name__ == "__main__":
    raise SystemExit(main())
