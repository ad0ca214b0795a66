"""Beside whose strict work best effort may run, as the settings say it."""

import pytest

pytestmark = pytest.mark.e2e


def told(site, model):
    """What the page says of a model that gives way."""
    return next(m for m in site.page_status()["models"] if m["name"] == model.name)["preemption"]


@pytest.fixture
def make_site(make_server, plugins, harness, archives, tmp_path):
    """Starts a server with these lines under [preemption]."""

    def make_site(lines):
        path = tmp_path / "shunter.toml"
        path.write_text(f"[preemption]\n{lines}\n")
        server = make_server(plugins, config={"shunter_config": str(path)})
        return harness.running(server, archives, tmp_path)

    return make_site


def test_where_nothing_may_run_beside_best_effort_stands_still_for_strict_work(
    make_site, wait_until
):
    with make_site('padding = "never"\nlongest_park_ms = 3600000\nmax_hold_ms = 3600000') as site:
        strict, bulk = site.add(), site.add(config={"shunter": {"class": "best_effort"}})
        wait_until("it is told", lambda: told(site, bulk)["not_beside"] == [f"{strict.name}/1.0"])
        assert told(site, strict) is None
        gate, held = strict.hold()
        assert [m["holds"] for m in site.page_status()["models"]] == [True, False]
        waits = bulk.send("bulk")
        wait_until("it stands still", lambda: told(site, bulk)["runners"][0]["state"] == "parked")
        assert bulk.order() == []
        assert not any(m["holds"] for m in site.page_status()["models"] if m["name"] == bulk.name)
        gate.open()
        assert [each.result().status for each in (*held, waits)] == [200, 200]
        [runner] = told(site, bulk)["runners"]
        assert (runner["state"], runner["preemptions"]) == ("running", 1)
        assert runner["parked_ms"] > 0
        strict.end()
        bulk.end()


@pytest.mark.parametrize(("padding", "preemptions"), [("always", 0), ("auto", 1)])
def test_best_effort_runs_beside_strict_work_where_the_settings_or_the_cores_let_it(
    make_site, wait_until, padding, preemptions
):
    # Nothing is known of how many threads the strict model has: it may need all cores.
    bounds = "longest_park_ms = 3600000\nmax_hold_ms = 3600000"
    with make_site(f'padding = "{padding}"\n{bounds}') as site:
        strict, bulk = site.add(), site.add(config={"shunter": {"class": "best_effort"}})
        beside = [f"{strict.name}/1.0"] * preemptions
        wait_until("it is told", lambda: told(site, bulk)["not_beside"] == beside)
        gate, held = strict.hold()
        answer = bulk.send("bulk")
        state = "parked" if preemptions else "running"
        if preemptions:
            wait_until("it parks", lambda: told(site, bulk)["runners"][0]["state"] == state)
        else:
            assert answer.result().status == 200
        gate.open()
        assert [each.result().status for each in (*held, answer)] == [200, 200]
        [runner] = told(site, bulk)["runners"]
        assert (runner["batches"], runner["preemptions"]) == (1, preemptions)
        strict.end()
        bulk.end()
