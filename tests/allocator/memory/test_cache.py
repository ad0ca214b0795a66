import pytest

from shunter.allocator.memory.cache import CacheError, DeviceCache, Heat


def filled(*names, budget=4):
    cache = DeviceCache(budget)
    for number, name in enumerate(names):
        cache.begin_swap(name, 1, number)
        cache.end_swap(name, number)
    return cache


def test_a_model_counts_from_the_begin_of_its_swap_and_is_hot_after_it():
    cache = DeviceCache(3)
    cache.begin_swap("a", 2, 0)
    assert (cache.heat("a"), cache.free, cache.coming) == (Heat.COMING, 1, 1)
    cache.end_swap("a", 1)
    assert (cache.heat("a"), cache.free, cache.coming) == (Heat.HOT, 1, 0)
    cache.begin_swap("b", 1, 2)
    cache.end_swap("b", 2, failed=True)
    assert (cache.heat("b"), cache.free) == (None, 1)


REFUSED = {
    "here already": lambda cache: cache.begin_swap("a", 1, 9),
    "too large": lambda cache: cache.begin_swap("x", 3, 9),
    "too large after all": lambda cache: cache.begin_swap("x", 3, 9, ["a", "a"]),
    "evicts what is not here": lambda cache: cache.begin_swap("x", 1, 9, ["y"]),
    "evicts what is at work": lambda cache: cache.begin_swap("x", 1, 9, ["b"]),
    "evicts what is pinned": lambda cache: cache.begin_swap("x", 1, 9, ["c"]),
    "evicts what comes": lambda cache: cache.begin_swap("x", 1, 9, ["d"]),
    "ends what does not come": lambda cache: cache.end_swap("a", 9),
    "starts what is not here": lambda cache: cache.start("x", 9),
    "finishes what is not at work": lambda cache: cache.finish("a"),
    "forgets what is at work": lambda cache: cache.forget("b"),
    "forgets what comes": lambda cache: cache.forget("d"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_would_break_a_rule_is_refused_and_changes_nothing(what):
    cache = filled("a", "b", "c", budget=5)
    cache.start("b", 5)
    cache.pinned.add("c")
    cache.begin_swap("d", 1, 6)
    before = repr(cache.held), set(cache.pinned)
    with pytest.raises(CacheError):
        REFUSED[what](cache)
    assert (repr(cache.held), cache.pinned) == before


def test_a_swap_with_a_batch_behind_it_does_not_fail_before_the_batch_has_ended():
    cache = DeviceCache(1)
    cache.begin_swap("a", 1, 0)
    cache.start("a", 0)
    with pytest.raises(CacheError):
        cache.end_swap("a", 1, failed=True)
    cache.finish("a")
    cache.end_swap("a", 1, failed=True)
    assert not cache.held


def test_the_least_recently_used_leave_and_copies_before_them():
    cache = filled("a", "b", "c", "d")
    cache.start("a", 10)
    cache.finish("a")
    assert cache.victims(2, cache.held) == ("b", "c")
    assert cache.victims(1, cache.held, copied={"d"}) == ("d",)
    assert cache.victims(1, ["a"]) == ("a",)
    assert cache.victims(0, cache.held) == ()
    assert cache.victims(2, ["a"]) is None
