"""The claims of the network benchmarks are computed from the rows as their docstrings say."""

import math
import socket
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest


def rows(*values, name="p50_us"):
    return [{name: value} for value in values]


class TestTax:
    @pytest.fixture
    def tax(self, script):
        return script("rpc_tax")

    def test_the_better_protocol_counts_in_every_round(self, tax):
        samples = {
            "784B | udp": rows(10, 10, 10),
            "784B | torchserve grpc": rows(100, 400, 100),
            "784B | torchserve http": rows(200, 200, 50),
        }
        assert tax.best(samples, "784B", tax.STOCK) == [100, 200, 50]
        assert tax.against(samples, "784B", ["udp"], tax.STOCK) == 0.1

    def test_who_takes_no_part_is_no_number(self, tax):
        samples = {"588KB | udp": rows(10)}
        assert math.isnan(tax.against(samples, "588KB", ["udp"], ["triton grpc + shm"]))
        assert math.isnan(tax.own_time(samples, "588KB", [])["median"])

    def test_own_time_is_less_the_echo_and_the_model(self, tax):
        samples = {"784B | udp": rows(40, 50, 60)}
        floors = [
            {"kernel": 10, "model": 1},
            {"kernel": 12, "model": 2},
            {"kernel": 10, "model": 1},
        ]
        assert tax.own_time(samples, "784B", floors)["median"] == 36


class TestLoad:
    @pytest.fixture
    def load(self, script):
        return script("rpc_load")

    def found(self, load, rates, **copies):
        return load.Found({name: rows(*each, name="rps") for name, each in rates.items()}, copies)

    def test_a_rival_that_answered_nothing_is_no_ratio(self, load):
        rates = {"udp": [80, 90], "tcp": [80, 90], "http": [10, 0], "grpc": [0, 0]}
        found = self.found(load, rates, udp=0.9)
        top = load.headline({"x": found}, {"torchserve": ["http", "grpc"]})
        assert top["peak_x_vs_torchserve"] is None
        assert load.against(found, [0, 10]) is None and load.against(found, [8, 9])["median"] == 10

    def test_peaks_are_against_the_rivals_better_protocol(self, load):
        cells = {
            "784B_64c_mtu1500": self.found(
                load,
                {"udp": [80, 90], "tcp": [100, 90], "http": [10, 5], "grpc": [5, 10]},
                udp=0.9,
                tcp=1.1,
            ),
            "784B_1c_loopback": self.found(load, {"udp": [80, 90], "tcp": [40, 45]}, udp=0.5),
        }
        top = load.headline(cells, {"torchserve": ["http", "grpc"], "triton": ["triton grpc"]})
        assert top == {
            "peak_784B_64c_mtu1500_vs_torchserve": 8.5,
            "udp_vs_tcp_worst": 0.9,
            "copies_per_byte_worst": 1.1,
        }

    def test_without_a_full_run_before_the_setting_is_a_busy_one(self, script, monkeypatch):
        selection = script("rpc.selection")

        class Side:
            name, axes, rival = "grpc", {"streams": (1, 2), "batch": (1,)}, "triton"

        model = script("rpc.models").empty_models()[0]
        cells = [selection.Cell(None, model, clients) for clients in (1, 64)]
        monkeypatch.setattr(selection, "committed_samples", lambda _: [])
        found = selection.without_selection(cells, [Side()])
        assert found["grpc", "784B", 1] == {"streams": 64, "batch": 8}
        assert found["grpc", "784B", 64] == {"streams": 1, "batch": 8}
        chosen = {"side": "grpc", "model": "784B", "clients": 1, "setting": {"streams": 7}}
        monkeypatch.setattr(
            selection, "committed_samples", lambda _: [chosen, {"cell": "of a round"}]
        )
        assert selection.without_selection(cells, [Side()])["grpc", "784B", 1] == {"streams": 7}


class TestBatches:
    @pytest.fixture
    def batches(self, script):
        return script("rpc_batches")

    def test_both_sides_get_the_same_arrivals(self, batches):
        load = batches.Workload("mixed", batches.MIXED, rate=1000)
        first, again = load.arrivals(1.0, 3), load.arrivals(1.0, 3)
        assert first == again != load.arrivals(1.0, 4)
        assert 800 < len(first) < 1200 and {kind for _, kind in first} == set(batches.MIXED)

    def test_what_a_request_says_is_said_by_http_too(self, batches):
        assert batches.Kind().headers == {}
        assert batches.Kind(60.0, True).headers == {
            "x-shunter-deadline-ms": "60",
            "x-shunter-class": "best-effort",
        }

    def test_the_headline_is_the_ratio_that_is_farthest_from_one(self, batches):
        found = [{"ratio": {"median": each}} for each in (1.08, 0.85, 1.12)]
        assert batches.headline(found) == {
            "mean_batch_vs_http_path": 0.85,
            "workloads_beyond_10_percent": 2,
        }

    def samples(self, **means):
        ends = {"200": 1}
        return {
            side: [{"mean_batch": mean, "ends": ends} for mean in found]
            for side, found in means.items()
        }

    def test_what_is_farthest_counts_in_either_direction(self, batches):
        rows = batches.rows_of(
            {
                "one": self.samples(http=[4, 4, 4], udp=[5, 4, 4]),
                "two": self.samples(http=[4, 4, 4], udp=[2, 3, 2], udp_4_sessions=[5, 6, 5]),
            }
        )
        top = batches.headline(rows)
        assert top["mean_batch_vs_http_path"] == 0.5 and top["workloads_beyond_10_percent"] == 1
        assert top["mean_batch_4_sessions_vs_http_path"] == 1.25

    def test_without_few_sessions_there_is_no_number_of_them(self, batches):
        rows = batches.rows_of({"one": self.samples(http=[4], udp=[4])})
        assert "mean_batch_4_sessions_vs_http_path" not in batches.headline(rows)
        assert "ratio_4_sessions" not in rows[0]


class TestAttack:
    def test_the_flood_is_compared_round_by_round(self, script):
        attack = script("rpc_attack")
        found = [
            {"attack": name, "p99_us": p99, "failed": 1, "executed_twice": 0, **more}
            for name, p99, more in (
                ("quiet", 100, {}),
                ("flood at nobody", 200, {"flood_per_s": 100_000}),
                ("flood", 300, {"flood_per_s": 99_000}),
                ("half-open", 1, {}),
            )
        ]
        assert attack.headline(found, lost=2) == {
            "p99_under_flood_vs_quiet": 3.0,
            "p99_under_flood_vs_flood_at_nobody": 1.5,
            "least_flood_per_s": 99_000,
            "lost_sessions": 2,
            "failed_requests": 4,
            "duplicated_executions": 0,
        }

    def test_only_numbered_requests_are_counted(self, script):
        is_stamp = script("rpc_attack").is_stamp
        assert is_stamp((1 << 32) + 7) and is_stamp((1000 << 32) + 1)
        assert not is_stamp(7) and not is_stamp(0x8877665544332211)


class Loopback:
    name = "loopback"


@pytest.fixture
def side(script):
    """A side that measures what ``rate`` says of a setting, and is alive until that raises."""
    loaded = script("rpc.loaded")

    class Side(loaded.Loaded):
        name, axes = "grpc", {"streams": (1, 2, 4)}
        alive, starts = True, 0

        def __init__(self, rate):
            self.rate = rate

        def pid(self):
            raise NotImplementedError

        def load(self, *_):
            raise NotImplementedError

        def is_alive(self):
            return self.alive

        def restart(self):
            self.alive, self.starts = True, self.starts + 1

        def measure(self, place, model, clients, setting, seconds):
            assert self.alive
            self.alive = False
            found = {"rps": self.rate(setting, self.starts)}
            self.alive = True
            return found

    return Side


def test_a_setting_that_fails_is_not_the_best_one(script, side):
    def rate(setting, starts):
        if setting["streams"] == 2:
            raise RuntimeError("no answer")
        return setting["streams"]

    selection, made = script("rpc.selection"), side(rate)
    model = script("rpc.models").empty_models()[0]
    settings, rows = selection.select([selection.Cell(Loopback, model, 8)], [made], 1)
    assert settings == {("grpc", "784B", 8): {"streams": 4}}
    assert [row.get("error") for row in rows] == [None, "no answer", None]
    assert made.starts == 1  # it had died of it


def test_who_hangs_is_started_anew_and_asked_once_more(script, side):
    """What hangs it may be the load before, and not the setting that is tried."""
    failed = script("rivals.process").RivalFailed

    def rate(setting, starts):
        if starts < {1: 1, 2: 3}.get(setting["streams"], 0):
            raise failed("no answer")
        return setting["streams"]

    selection, made = script("rpc.selection"), side(rate)
    model = script("rpc.models").empty_models()[0]
    _, rows = selection.select([selection.Cell(Loopback, model, 8)], [made], 1)
    assert [(row["streams"], row.get("rps")) for row in rows] == [
        (1, None),
        (1, 1),
        (2, None),
        (2, None),
        (4, 4),
    ]
    assert made.starts == 3


def test_a_triton_that_hangs_has_failed_and_nothing_is_left_of_its_client(script, monkeypatch):
    grpc = pytest.importorskip("tritonclient.grpc")
    triton_rpc, failed = script("rivals.triton_rpc"), script("rivals.process").RivalFailed
    monkeypatch.setattr(triton_rpc, "client_module", lambda: grpc)
    monkeypatch.setattr(triton_rpc, "ANSWER_S", 0.3)
    monkeypatch.setattr(triton_rpc, "GOODBYE_S", 0.1)
    model = script("rpc.models").empty_models()[0]
    with socket.create_server(("127.0.0.1", 0)) as deaf, ExitStack() as stack:
        port = deaf.getsockname()[1]
        server = SimpleNamespace(grpc_port=port, failure=failed)
        with pytest.raises(failed, match="does not answer empty784"):
            triton_rpc.shared_call(server, model, stack)
    assert not list(Path("/dev/shm").glob(f"*-{port}"))


def test_no_more_is_on_its_way_than_a_server_should_keep(script, side):
    selection = script("rpc.selection")
    small, _, large = script("rpc.models").empty_models()
    made = side(lambda setting, _: setting["streams"])
    cells = [selection.Cell(Loopback, model, 200) for model in (small, large)]
    settings, _ = selection.select(cells, [made], 1)
    assert [each["streams"] for each in settings.values()] == [4, 2]
    assert made.values(large, 10_000) == {"streams": (1,)}


def no_answer():
    raise OSError("no answer")


@pytest.mark.parametrize(
    ("ends", "tries", "starts"),
    [([5], 1, 0), ([0, 5], 2, 0), ([0, 0, 5], 3, 1), ([None, 5], 2, 1), ([None] * 3, 3, 2)],
)
def test_who_breaks_is_asked_again_and_started_anew(script, side, ends, tries, starts):
    load, selection, left = script("rpc_load"), script("rpc.selection"), iter(ends)
    made = side(lambda *_: no_answer() if (found := next(left)) is None else found)
    cell = selection.Cell(Loopback, script("rpc.models").empty_models()[0], 8)
    row = load.measured(made, cell, {"streams": 1}, 1)
    assert (row["rps"], row["tries"], made.starts) == (ends[-1] or 0, tries, starts)
    assert ("error" in row) == (ends[-1] is None)
