"""Pictures are drawn from results as they are written, and left out where these do not fit."""

import json

import pytest


@pytest.fixture
def plots(script):
    pytest.importorskip("matplotlib")
    pytest.importorskip("PIL")
    return script("plots")


def ratio(median):
    return {"median": median, "low": 0.9 * median, "high": 1.1 * median, "pairs": 5}


def put(folder, name, rows):
    (folder / f"{name}.json").write_text(json.dumps({"name": name, "rows": rows}))


def classes(side, alone, mixed):
    return {
        "side": side,
        "alone_p99_ms": alone,
        "alone_p99_ms_interval": [0.8 * alone, 1.2 * alone],
        "mixed_p99_ms": mixed,
        "mixed_p99_ms_interval": [mixed, "inf"],
    }


def serving(batch, rival="best_stock_same_memory"):
    found = {"batch": batch, "configuration": "2x1x32", "shunter": {"per_s": 20.0}}
    for name in ("fat_same_memory", rival):
        found |= {name: {"per_s": 10.0}, f"vs_{name}": ratio(2.0)}
    return found


def test_a_result_becomes_a_small_png(plots, tmp_path):
    sides = [classes("shunter", 30, 60), classes("stock, two models", 40, "inf")]
    put(tmp_path, "mixed_classes", [*sides, {"capacities": {}}])
    put(tmp_path, "packrat_serving", [serving(2), serving(4)])
    for name in ("mixed_classes", "packrat_serving"):
        plots.draw(name, tmp_path, tmp_path / "images")
        drawn = (tmp_path / f"images/bench-{name}.png").read_bytes()
        assert drawn.startswith(b"\x89PNG")
        assert len(drawn) < 60_000


def test_what_is_missing_or_older_is_left_out_with_a_word(plots, tmp_path, capsys):
    put(tmp_path, "packrat_serving", [serving(2, "best_stock_kept")])
    put(tmp_path, "cluster", [{"what": "fault"}])
    names = ["packrat_serving", "cluster", "disb", "packrat_reconfigure"]
    plots.main([*names, "--results", str(tmp_path), "--to", str(tmp_path)])
    said = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in said] == names
    assert "no 'best_stock_same_memory'" in said[0]
    assert "no 'what closed'" in said[1]
    assert all("there is no result" in line for line in said[2:])
    assert not list(tmp_path.glob("*.png"))


def test_a_name_without_a_picture_is_answered_with_the_names(plots, capsys):
    with pytest.raises(SystemExit):
        plots.main(["disc"])
    assert "no picture of disc; there are: http_sweep" in capsys.readouterr().err
