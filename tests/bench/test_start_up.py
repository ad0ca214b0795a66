"""What is made of the measurements of starts."""

import pytest


@pytest.fixture
def start_up(script):
    return script("start_up")


def row(side, models, number, seconds, mb=100.0, kind="plain"):
    point = {"side": side, "kind": kind, "models": models, "round": number}
    return point | {"seconds": seconds, "mb": mb}


def test_rounds_are_compared_with_themselves_and_those_of_one_side_left_out(start_up):
    rows = [row("stock", 10, 0, 10.0), row("stock", 10, 1, 40.0)]
    rows += [row("dedicated", 10, 0, 5.0, 20.0), row("dedicated", 10, 2, 1.0)]
    rows += [row("pool", 10, 0, 2.0, kind="torch")]
    found = start_up.headline(rows, 10)
    assert (found["plain_seconds_vs_stock"], found["plain_memory_vs_stock"]) == (0.5, 0.2)
    assert "torch_seconds_vs_stock" not in found
    assert (found["stock_plain_10_seconds"], found["pool_torch_10_seconds"]) == (25.0, 2.0)


@pytest.mark.parametrize(("free_mb", "fits"), [(5001.0, True), (4999.0, False)])
def test_a_side_is_not_tried_with_more_models_than_have_room(start_up, monkeypatch, free_mb, fits):
    class Memory:
        available = free_mb * 1e6

    monkeypatch.setattr(start_up.psutil, "virtual_memory", Memory)
    rows = [row("stock", 1, 0, 1.0, 30.0), row("stock", 10, 0, 1.0, 100.0)]
    rows.append(row("dedicated", 10, 0, 1.0, 5000.0))
    assert start_up.has_room(rows, {"side": "stock", "kind": "plain", "models": 100}) is fits
    assert start_up.has_room(rows, {"side": "pool", "kind": "torch", "models": 100})
