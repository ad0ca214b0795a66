"""Workers of several models that are one process: two batches at once, of all threads."""

import pytest

from shunter.nic_frontend.wire.layout import Flags, WireStatus

MODELS = "abcd"
STRICT, BEST_EFFORT = 1, 2


@pytest.fixture(params=[1, 2], ids="{} threads".format)
def serving(request, site):
    """A front end with a worker of each model in one set: workers and clients by model."""
    site.serve(threads=request.param)
    puppets = {model: site.puppet(model=model, pool=3) for model in MODELS}
    clients = {model: site.client(model=model) for model in MODELS}
    return site, puppets, clients


def numbers_of(puppets):
    """How many batches each worker was given."""
    return {model: each.queue.words[each.word("batch_number")] for model, each in puppets.items()}


def test_a_set_gets_two_batches_and_then_who_is_next(serving, nic):
    site, puppets, clients = serving
    for model in "ab":
        clients[model].ask(add=Flags.IDEMPOTENT)
        assert puppets[model].batch() is not None
    for model, priority in (("a", STRICT), ("c", BEST_EFFORT), ("d", STRICT)):
        clients[model].ask(priority=priority)
        nic.until(lambda model=model: site.function(model)["waiting"] == 1)
    assert numbers_of(puppets) == dict.fromkeys("ab", 1) | dict.fromkeys("cd", 0)
    puppets["b"].done(WireStatus.OK)
    assert puppets["d"].batch() is not None  # it had none yet
    assert numbers_of(puppets) == {"a": 1, "b": 1, "c": 0, "d": 1}
    puppets["a"].die()  # its request waits again, alone, for another worker
    assert puppets["c"].batch() is not None
    puppets["c"].done(WireStatus.OK)
    puppets["d"].done(WireStatus.OK)
    for model in "bcd":
        clients[model].answers(1)
    puppets["a"] = site.puppet(model="a", pool=3)
    for _ in range(2):
        assert puppets["a"].batch() is not None
        puppets["a"].done(WireStatus.OK)
    clients["a"].answers(2)


def test_who_ends_a_batch_says_so_also_where_only_another_model_waits(site, nic):
    site.serve()
    puppets = {model: site.puppet(model=model, pool=3 if model in "ab" else 0) for model in "abc"}
    for model, puppet in puppets.items():
        site.client(model=model).ask()
        assert puppet.batch() is not None
    wants = puppets["a"].queue.front_end("front_end_wants_done")
    nic.until(lambda: [p.queue.words[wants] for p in puppets.values()] == [1, 1, 0])


def test_workers_of_their_own_wait_for_nobody(site):
    site.serve()
    puppets = {model: site.puppet(model=model) for model in MODELS}
    for model, puppet in puppets.items():
        site.client(model=model).ask()
        assert puppet.batch() is not None


def test_strict_requests_have_room_beside_what_stands_still_for_them(site, nic):
    site.serve()
    low = {model: site.puppet(model=model, pool=3, slot=n) for n, model in enumerate("ab")}
    strict = site.puppet(model="c", pool=3, slot=2, slices=1)
    for model, puppet in low.items():
        site.client(model=model).ask(priority=BEST_EFFORT)
        assert puppet.batch() is not None
    client = site.client(model="c")
    client.ask(priority=STRICT)
    assert strict.batch() is not None
    strict.done(WireStatus.OK)
    client.answers(1)
