"""Real networks behind every server: the same inputs, whole passes, and what the claims are of."""

import math

import numpy as np
import pytest


@pytest.fixture(scope="module")
def bench(script):
    return script("rpc_models")


@pytest.fixture(scope="module")
def asking(script):
    return script("rpc.asking")


class TestInputs:
    def test_all_runs_and_sides_have_the_same(self, bench):
        for name in bench.real.INPUTS:
            first, again = bench.real.inputs(name), bench.real.inputs(name)
            assert len(first) == bench.real.INPUTS[name]
            assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))

    def test_sentences_are_of_many_lengths(self, bench):
        lengths = [len(each) for each in bench.real.inputs("minilm")]
        assert (min(lengths), max(lengths)) == (8, 256) and lengths != sorted(lengths)
        assert len(set(lengths)) == len(lengths)

    def test_types_and_shapes_are_those_of_the_model(self, bench):
        for model in bench.real.models():
            kind, shape = model.input
            for x in bench.real.inputs(model.name):
                assert x.dtype == kind and (x.shape == shape or (shape == (-1,) and x.ndim == 1))


class TestTurn:
    """A closed loop of one client process."""

    @pytest.fixture
    def ask(self, asking, tmp_path, monkeypatch):
        asked = []
        asking.client.cache_clear()
        monkeypatch.setattr(asking, "MOST_PASS", 1e12)  # however slow this host is

        def client(offset):
            def ask(x):
                asked.append(int(x[0]))
                return x + float(offset)

            return ask

        monkeypatch.setitem(asking.KINDS, "plus", client)
        inputs = {f"x{place}": np.array([place], np.float32) for place in range(4)}
        path = tmp_path / "data.npz"
        np.savez(path, **inputs, answers=np.arange(4, dtype=np.float32)[:, None])
        turn = lambda offset, **what: asking.turn(["plus", str(offset)], str(path), **what)  # noqa: E731
        return turn, asked

    def test_it_ends_with_a_whole_pass(self, ask):
        turn, asked = ask
        found = turn(0, whole=True, first=2, seconds=1e-9)
        assert asked == [2, 3, 0, 1] and len(found["latencies_us"]) == 4

    def test_it_asks_at_most_so_often(self, ask):
        turn, asked = ask
        assert len(turn(0, seconds=1e9, most=6)["latencies_us"]) == 6
        assert asked == [0, 1, 2, 3, 0, 1]

    def test_it_lasts_until_its_last_answer(self, ask):
        turn, _ = ask
        found = turn(0, seconds=1e-9)
        assert len(found["latencies_us"]) == 1 and found["lasted_s"] > 0

    def test_a_wrong_answer_is_seen(self, ask):
        turn, _ = ask
        assert turn(0.5, whole=True, seconds=1e-9)["difference"] == 0.5


class TestClaims:
    @pytest.fixture
    def samples(self):
        def rows(p50, rps):
            return [
                {"one_p50_us": p, "eight_rps": r, "difference": 1e-6}
                for p, r in zip(p50, rps, strict=True)
            ]

        return {
            "digits | udp": rows([10, 10, 10], [800, 800, 800]),
            "digits | torchserve http": rows([100, 50, 100], [100, 400, 100]),
            "digits | torchserve grpc": rows([200, 200, 40], [200, 200, 50]),
        }

    def test_the_better_protocol_counts_in_every_round(self, bench, samples):
        assert bench.best(samples, "digits", bench.STOCK, "one_p50_us") == [100, 50, 40]
        assert bench.best(samples, "digits", bench.STOCK, "eight_rps") == [200, 400, 100]
        top = bench.headline(samples, ["digits"])
        assert top["digits_p50_vs_torchserve_best"] == 0.2
        assert top["digits_rate_vs_torchserve_best"] == 4 and top["worst_difference"] == 1e-6

    def test_who_takes_no_part_is_in_no_claim(self, bench, samples):
        assert not any("triton" in name for name in bench.headline(samples, ["digits"]))

    def test_every_client_has_its_own_rate(self, bench):
        row = {"latencies_us": [1.0, 3.0], "lasted_s": 0.5, "difference": 0.0, "cpu_s": 1e-6}
        found = bench.pace([row, {**row, "lasted_s": 1.0, "difference": 0.5}])
        assert found["rps"] == 6 and found["requests"] == 4 and found["difference"] == 0.5
        assert math.isclose(found["client_cpu_us"], 0.5)

    def test_a_side_is_asked_in_the_setting_in_which_it_was_fastest(self, bench):
        class Bed:
            def turn(self, side, model, setting, clients, **_):
                return {"rps": {(1, 1, 1): 5, (8, 1, 1): 9, (): 7}[setting]}

        stock = bench.Side("torchserve http", 1, ("x",), ((1, 1, 1), (8, 1, 1)))
        ours = bench.Side("udp", 1, ("ours", "url"))
        rows = bench.select(Bed(), [ours, stock], ["digits"], 0.1)
        assert stock.best == {"digits": (8, 1, 1)} and ours.best == {"digits": ()}
        assert [row["tried_rps"] for row in rows] == [{"1-1-1": 5, "8-1-1": 9}]
        assert stock.target("digits", (8, 1, 1)) == ["x", "digits-8-1-1"]
        assert ours.target("digits", ()) == ["ours", "url", "digits"]
