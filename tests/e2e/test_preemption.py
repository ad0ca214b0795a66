"""Who holds slices, who stands still for it, and who takes turns with whom."""

import contextlib
import itertools
import json
import os
import random
import re
import signal
import threading
import time
from pathlib import Path

import pytest

from shunter.batching.page import holds
from shunter.batching.page.control_page import ControlPage
from shunter.batching.page.layout import (
    HEADER_FIELDS,
    HEADER_SIZE,
    HOLDER_FIELDS,
    RUNNER_COUNT,
    RUNNER_FIELDS,
    RUNNER_SIZE,
    RUNNERS_OFFSET,
    SLOT_WORDS,
)
from shunter.batching.page.slices import ALL_CPUS, mask_of, read_slices

pytestmark = pytest.mark.e2e

STRICT = {"x-shunter-class": "strict"}
BEST_EFFORT = {"x-shunter-class": "best-effort"}
GIVES_WAY = {"shunter": {"class": "best_effort"}}


class Page:
    """What the test looks at on a server's control page."""

    def __init__(self, site):
        self.page = ControlPage.attach(site.runtime / "control")

    def slot(self, model):
        for slot in self.page.live_slots():
            identity = self.page.read_identity(slot)
            if (identity.model_name, identity.model_version) == (model.name, model.version):
                return slot
        raise KeyError(model.name)

    def groups(self, model):
        slot = self.slot(model)
        return self.page.read_groups(slot, self.page.read_identity(slot).group_count)

    def held(self):
        """The server's own line: slices and models."""
        at = {name: (HEADER_SIZE + f.offset) // 8 for name, f in HOLDER_FIELDS.items()}
        models = mask_of(self.page.words, at["hold_models"], SLOT_WORDS)
        return read_slices(self.page.words, at["hold_slices"]), models

    def holder(self):
        return self.page.words[(HEADER_SIZE + HOLDER_FIELDS["holder_pid"].offset) // 8]

    def set_runner(self, index, **words):
        for name, value in words.items():
            at = RUNNERS_OFFSET + index * RUNNER_SIZE + RUNNER_FIELDS[name].offset
            self.page.words[at // 8] = value


@pytest.fixture
def page(site):
    """The page of the server."""
    page = Page(site)
    with contextlib.closing(page.page):
        yield page


@pytest.fixture
def wait_held(wait_until, page):
    """Waits until these models hold, on every CPU, and nobody else."""

    def wait(*models):
        bits = sum(1 << page.slot(model) for model in models)
        wanted = (ALL_CPUS if models else 0, bits)
        wait_until(f"hold words {wanted}", lambda: page.held() == wanted)

    return wait


def _wait_metric(wait_until, model, name, value):
    wait_until(f"{name} {value}", lambda: model.site.metric(name, model) == value)


def _environment(pid):
    pairs = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(pair.split("=", 1) for pair in pairs if pair)


def _policies(pid):
    found = set()
    for thread in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(ProcessLookupError):  # it has ended
            found.add(os.sched_getscheduler(int(thread)))
    return found


@pytest.mark.both_servers
def test_a_model_holds_while_strict_requests_wait_or_run(serve, page, wait_held, wait_until):
    one, two = serve(), serve()
    wait_held()
    gate, futures = one.hold()
    wait_held(one)
    now_ns = time.monotonic_ns()
    assert holds.held(page.page, ALL_CPUS, now_ns) == ALL_CPUS
    assert holds.holding_models(page.page, now_ns) == 1 << page.slot(one)
    assert one.state()["holds"]
    _wait_metric(wait_until, one, "shunter_holds", 1.0)
    futures.append(one.send("next"))
    other, more = two.hold()
    wait_held(one, two)
    gate.open()
    assert [future.result().status for future in futures] == [200, 200]
    wait_held(two)
    assert not one.state()["holds"]
    other.open()
    assert more[0].result().status == 200
    wait_held()
    _wait_metric(wait_until, one, "shunter_holds", 0.0)


@pytest.mark.both_servers
def test_best_effort_work_and_workers_that_give_way_hold_nothing(serve, page):
    plain, giving = serve(), serve(config=GIVES_WAY)
    for model, headers in ((plain, BEST_EFFORT), (giving, STRICT)):
        gate, futures = model.hold(headers=headers)
        futures.append(model.send("next", headers=headers))
        assert page.held() == (0, 0)
        gate.open()
        assert [future.result().status for future in futures] == [200, 200]


@pytest.mark.both_servers
def test_what_waits_for_a_worker_that_died_holds_nothing_until_it_is_back(
    serve, page, wait_held, wait_until
):
    model = serve()
    gate, futures = model.hold()
    wait_held(model)
    model.slow_load.touch()
    os.kill(model.pids()[0], signal.SIGKILL)
    wait_held()
    model.wait_slow_load()
    assert (model.state()["in_flight"]["requests"], page.held()) == (0, (0, 0))
    model.slow_load.unlink()
    wait_held(model)
    gate.open()
    assert futures[0].result().status == 200
    wait_held()


@pytest.mark.both_servers
def test_batches_of_strict_requests_are_counted_apart(serve, page):
    model = serve()
    for headers in (STRICT, BEST_EFFORT, STRICT):
        assert model.ask(headers=headers).status == 200
    model.state()  # the page is as new as that
    told = page.page.read_telemetry(page.slot(model))
    assert (told.strict_batches[0], told.batches_by_size[0]) == (2, 3)
    assert 0 < told.strict_batch_ns[0] < told.service_ns_by_size[0]


@pytest.mark.both_servers
def test_nothing_is_held_and_no_turn_is_lost_after_a_busy_time(serve, wait_held):
    """Requests of both classes that end in every way, while workers die."""
    rng = random.Random(6)
    models = [serve(), serve(config=GIVES_WAY), serve(config=GIVES_WAY)]
    futures = []
    for i in range(60):
        headers = dict(rng.choice([STRICT, BEST_EFFORT]))
        if rng.random() < 0.3:
            headers["x-shunter-deadline-ms"] = str(rng.randrange(1, 200))
        body = {"fail": True} if i % 9 == 5 else {"crash": True} if i in (20, 40) else {}
        more = {"sleep_ms": rng.randrange(20), "headers": headers, **body}
        futures.append(rng.choice(models).send(**more))
    assert {future.result().status for future in futures} <= {200, 500, 503, 504, 507}
    wait_held()
    assert [model.ask().status for model in models] == [200] * 3
    wait_held()


def test_a_server_that_ended_holds_nothing(harness, archives, plugins, make_server, tmp_path):
    server = make_server(plugins)
    with harness.running(server, archives, tmp_path, patience_s=30) as site:
        page = Page(site)
        assert page.holder() == site.status()["pid"]
    with contextlib.closing(page.page):  # its file is gone, what was mapped is not
        assert (page.holder(), page.held()) == (0, (0, 0))


@pytest.mark.both_servers
def test_a_deadline_that_passes_ends_a_hold(serve, wait_held):
    model = serve()
    gate, futures = model.hold(headers=BEST_EFFORT)
    late = model.ask("late", headers={**STRICT, "x-shunter-deadline-ms": "50"})
    assert late.status == model.LATE
    wait_held()
    gate.open()
    assert futures[0].result().status == 200


@pytest.mark.both_servers
def test_the_worker_of_a_best_effort_model_runs_under_the_idle_policy(serve, page):
    model, strict = serve(config=GIVES_WAY), serve()
    worker, other = model.pids()[0], strict.pids()[0]
    assert _policies(worker) == {os.SCHED_IDLE}
    assert _policies(other) == {os.SCHED_OTHER}
    told = _environment(worker)
    assert (told["SHUNTER_PREEMPTIBLE"], told["SHUNTER_SCHED"]) == ("1", "idle")
    assert told["SHUNTER_SLOT"] == str(page.slot(model))
    assert int(told["SHUNTER_SLICES"], 16) == ALL_CPUS
    assert _environment(other)["SHUNTER_SLOT"] == str(page.slot(strict))
    assert not {"SHUNTER_PREEMPTIBLE", "SHUNTER_SCHED"} & set(_environment(other))
    told, local = model.state()["preemption"], model.site.page_status()["models"]
    assert strict.state()["preemption"] is None
    assert [runner["pid"] for runner in told["runners"]] == [worker]
    here = next(m["preemption"] for m in local if m["name"] == model.name)
    assert {*told} == {*here} and {*told["runners"][0]} == {*here["runners"][0]}
    found = [(g.group_slices, g.group_yields) for m in (model, strict) for g in page.groups(m)]
    assert found == [(ALL_CPUS, 1), (ALL_CPUS, 0)]


@pytest.mark.both_servers
def test_the_models_environment_and_places_decide_before_the_rule(serve, page):
    told = {"class": "best_effort", "environment": {"SHUNTER_SCHED": "other"}, "cores": "0"}
    model = serve(config={"shunter": told})
    worker = model.pids()[0]
    assert _policies(worker) == {os.SCHED_OTHER}
    assert os.sched_getaffinity(worker) == {0}
    assert int(_environment(worker)["SHUNTER_SLICES"], 16) == 1
    assert [g.group_slices for g in page.groups(model)] == [1]


@pytest.mark.both_servers
def test_who_gives_way_keeps_no_cores_of_its_own(serve):
    told = {"class": "best_effort", "configuration": "1x1x1", "cores": "auto"}
    worker = serve(config={"shunter": told}).pids()[0]
    assert not _environment(worker).get("SHUNTER_CORES")
    assert os.sched_getaffinity(worker) == os.sched_getaffinity(0)


def _groups(*classes, **more):
    return [{"configuration": "1x0x1", **({"classes": c} if c else {}), **more} for c in classes]


BOTH = ["strict", "best_effort"]


@pytest.mark.parametrize(
    ("section", "yields"),
    [
        ({"preemptible": True}, [True]),
        ({"class": "best_effort", "preemptible": False}, [False]),
        ({"preemptible": {"segment_ms": 0.5, "boundaries": "fx", "drop": True}}, [True]),
        ({"preemptible": {}}, [True]),
        ({"groups": _groups(["strict"], ["best_effort"], BOTH)}, [False, True, False]),
        ({"class": "best_effort", "groups": _groups(None)}, [True]),
        ({"class": "best_effort", "groups": _groups(BOTH)}, [False]),
        ({"preemptible": False, "groups": _groups(None, preemptible=True)}, [True]),
        ({"groups": _groups(["best_effort"], BOTH, preemptible=False)}, [False, False]),
    ],
)
def test_settings_say_which_workers_give_way(serve, section, yields):
    model = serve(config={"shunter": section}, initial_workers=len(yields))
    assert [group["yields"] for group in model.state()["groups"]] == yields


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (
            {"preemptible": "often"},
            'shunter.preemptible: "often"; allowed: true, false or a mapping of '
            "boundaries, drop, segment_ms",
        ),
        (
            {"preemptible": {"segments": 3}},
            "shunter.preemptible.segments is not known; allowed: boundaries, drop, segment_ms",
        ),
        *(
            (
                {"preemptible": {"segment_ms": value}},
                f'shunter.preemptible.segment_ms: "{value}"; allowed: milliseconds above 0 and at'
                " most 1000",
            )
            for value in (0, 1000.5, "short")
        ),
        (
            {"preemptible": {"boundaries": "layers"}},
            'shunter.preemptible.boundaries: "layers"; allowed: modules, fx',
        ),
        ({"preemptible": {"drop": 1}}, 'shunter.preemptible.drop: "1"; allowed: true, false'),
        (
            {"groups": _groups(None, preemptible={"drop": True})},
            'shunter.groups[0].preemptible: "{drop=true}"; allowed: true, false',
        ),
    ],
)
def test_a_wrong_value_is_refused_at_registration(site, section, message):
    archive = site.archives.add("wrong", config={"shunter": section})
    answer = site.register("wrong", archive)
    assert (answer.status, message in answer.json["message"]) == (400, True), answer
    assert "wrong" not in site.models()


@pytest.mark.both_servers
def test_the_time_in_which_strict_work_was_there_does_not_count_as_late(serve, wait_held):
    model, strict = serve(config={**GIVES_WAY, "responseTimeout": 1}), serve()
    gate, futures = strict.hold()
    wait_held(strict)
    answer = model.ask("slow", sleep_ms=1500)
    assert (answer.status, model.order()) == (200, ["slow"])
    gate.open()
    assert futures[0].result().status == 200
    assert model.ask("hangs", sleep_ms=30_000).status == 500


@pytest.fixture
def always_held(page):
    """Another process with strict work everywhere, all the time."""
    over = threading.Event()
    holder = holds.claim(page.page, os.getpid(), time.monotonic_ns())

    def beat():
        while not over.wait(0.1):
            holder.heartbeat(time.monotonic_ns())
            holder.progress(time.monotonic_ns())

    beats = threading.Thread(target=beat)
    beats.start()
    holder.hold(ALL_CPUS, 0, time.monotonic_ns())
    yield
    over.set()
    beats.join()
    holder.release()


@pytest.mark.usefixtures("always_held")
@pytest.mark.both_servers
def test_a_worker_that_hangs_is_found_though_there_is_always_strict_work(serve):
    model = serve(config={**GIVES_WAY, "responseTimeout": 1})
    # More than it may stand still and then run, less than many time-outs.
    assert model.ask("hangs", sleep_ms=8000).status == 500


@pytest.mark.both_servers
def test_strict_work_that_gets_nowhere_holds_no_longer_though_other_strict_work_does(
    serve, page, wait_held, wait_until
):
    stuck, busy = serve(), serve()
    gate, futures = stuck.hold()
    wait_held(stuck)

    def lets_go():
        assert busy.ask().status == 200
        return not page.held()[1] >> page.slot(stuck) & 1

    wait_until("it lets go", lets_go)
    futures.append(stuck.send("next"))
    gate.open()
    assert [future.result().status for future in futures] == [200, 200]
    wait_held()
    gate, futures = stuck.hold("again")
    wait_held(stuck)
    gate.open()
    assert futures[0].result().status == 200


@pytest.mark.both_servers
def test_batches_that_may_have_stood_still_say_nothing_about_latency(serve, page, wait_held):
    model, strict = serve(config=GIVES_WAY), serve()
    gate, futures = strict.hold()
    wait_held(strict)

    def fitted():
        """Batches that the fit has seen; none before it has seen three."""
        assert [model.ask().status for _ in range(3)] == [200] * 3
        model.state()  # the page is as new as that
        return page.groups(model)[0].group_fitted

    assert fitted() == 0
    gate.open()
    assert futures[0].result().status == 200
    wait_held()
    assert fitted() >= 3


def test_it_is_said_once_that_nobody_gives_way_to_strict_requests(serve, wait_until):
    models = [serve(config={"shunter": {"preemptible": True}}), serve(config=GIVES_WAY), serve()]
    for model in models:
        assert [model.ask(headers=STRICT).status for _ in range(2)] == [200, 200]

    def told(text):
        log = models[0].site.log()
        return [log.count(f"{text} for {model.name}/{model.version}") for model in models]

    def times():
        return told("A strict request"), told("Requests")

    wait_until("both are said once", lambda: times() == ([1, 1, 0], [1, 0, 0]))


def test_counts_of_a_worker_that_ended_stay_in_the_metrics(serve, page, wait_until):
    model, last = serve(config=GIVES_WAY), RUNNER_COUNT - 1

    def expect(preemptions, parked):
        _wait_metric(wait_until, model, "shunter_preemptions_total", preemptions)
        _wait_metric(wait_until, model, "shunter_parked_seconds_total", parked)

    slot = page.slot(model)
    try:
        page.set_runner(last, preemptions=5, parked_ns=2 * 10**9, runner_slot=slot, runner_pid=1)
        expect(5.0, 2.0)
        page.set_runner(last, preemptions=6)
        expect(6.0, 2.0)
        page.set_runner(last, runner_pid=0)
        page.set_runner(last, preemptions=0, parked_ns=0)
        page.set_runner(last, preemptions=2, parked_ns=10**9, runner_pid=2)
        expect(8.0, 3.0)
    finally:
        page.set_runner(last, preemptions=0, parked_ns=0, runner_slot=-1, runner_pid=0)
    assert re.search(r"shunter_yield_seconds_total\{.*\} 0\.0", model.site.metrics())


@pytest.fixture
def trio(tmp_path):
    """Registers three models that write one record; their requests."""

    def trio(serve, names, **config):
        record = tmp_path / "together"
        told = {"environment": {"ECHO_RECORD": str(record)}, **config}
        settings = {"shunter": told}
        models = [serve(name, version=version, config=settings) for name, version in names]
        paths = [{"path": f"/predictions/{m.name}/{m.version}"} for m in models]

        def order():
            return [json.loads(line)["id"] for line in record.read_text().splitlines()]

        return models, paths, order

    return trio


def test_best_effort_models_take_turns_one_batch_at_a_time(serve, trio):
    names = [("ordered", f"{i}.0") for i in (1, 2, 3)]
    (a, b, c), paths, order = trio(serve, names, **GIVES_WAY["shunter"])
    gate, futures = a.hold("a1", **paths[0])
    futures += [a.queue("a2", **paths[0]), a.queue("a3", **paths[0])]
    futures += [b.queue("b1", **paths[1]), b.queue("b2", **paths[1]), c.queue("c1", **paths[2])]
    strict = serve()
    assert strict.ask("s").status == 200  # turns of best effort are not its business
    assert order() == ["a1"]
    gate.open()
    assert [future.result().status for future in futures] == [200] * 6
    assert order() == ["a1", "b1", "c1", "a2", "b2", "a3"]


def test_the_workers_of_one_model_run_beside_each_other(serve):
    model, other = serve(config=GIVES_WAY, initial_workers=2), serve(config=GIVES_WAY)
    gate, futures = model.hold("one", "two")
    futures.append(other.queue("next"))
    gate.open()
    assert [future.result().status for future in futures] == [200] * 3


def test_a_worker_that_dies_in_its_turn_gives_it_to_the_next(serve):
    dying, waiting = serve(config=GIVES_WAY), serve(config=GIVES_WAY)
    gate, futures = dying.hold("first")
    next_one = waiting.queue("next")
    dying.slow_load.touch()
    os.kill(dying.pids()[0], signal.SIGKILL)
    assert next_one.result().status == 200
    dying.slow_load.unlink()
    gate.open()
    assert futures[0].result().status == 200


def test_a_deadline_passes_while_its_model_waits_for_its_turn(serve):
    running, waiting = serve(config=GIVES_WAY), serve(config=GIVES_WAY)
    gate, futures = running.hold()
    assert waiting.ask("late", headers={"x-shunter-deadline-ms": "200"}).status == 504
    futures.append(waiting.queue("patient"))
    gate.open()
    assert [future.result().status for future in futures] == [200, 200]
    assert waiting.order() == ["patient"]


@pytest.fixture(params=["torchserve", pytest.param("triton", marks=pytest.mark.triton)])
def exclusive_site(request, start, tmp_path):
    """A server where strict and best-effort models take turns."""
    settings = tmp_path / "shunter.toml"
    settings.write_text('[preemption]\nstrict = "edf"\nexclusive = true\n')
    with start(request.param, settings) as site:
        yield site


def test_exclusive_strict_models_go_first_by_deadline_but_wait_for_what_runs(
    exclusive_site, wait_until, trio
):
    counter = itertools.count()
    models = []

    def serve(name, version, config):
        models.append(exclusive_site.add(f"exclusive{next(counter)}", config=config))
        return models[-1]

    (a, b, c), _, order = trio(serve, [("", "1.0")] * 3)
    page = Page(exclusive_site)
    with contextlib.closing(page.page):
        word = HEADER_FIELDS["exclusive"].offset // 8
        wait_until("the page says so", lambda: page.page.words[word] == 1)
        gate, futures = a.hold("running", headers=BEST_EFFORT)
        futures.append(a.queue("a best effort", headers=BEST_EFFORT))
        for model, request, deadline in ((b, "b", "900000"), (c, "c", "600000")):
            headers = {**STRICT, "x-shunter-deadline-ms": deadline}
            futures.append(model.queue(request, headers=headers))
        futures.append(a.queue("a", headers=STRICT))
        late = {**STRICT, "x-shunter-deadline-ms": "200"}
        assert c.ask("late", headers=late).status == c.LATE
        assert (order(), page.held()) == (["running"], (0, 0))
        gate.open()
        assert [future.result().status for future in futures] == [200] * 5
        assert order() == ["running", "c", "b", "a", "a best effort"]
    for model in models:
        model.end()
