import math

from hypothesis import given
from hypothesis import strategies as st

from shunter.allocator.cluster.tournament import Tournament

KEYS = st.lists(st.one_of(st.integers(0, 9).map(float), st.just(math.inf)), max_size=20)


@given(KEYS, st.lists(st.tuples(st.integers(0, 19), st.integers(0, 9)), max_size=20))
def test_it_finds_what_sorting_finds_after_any_changes(keys, changes):
    found = Tournament(keys)
    for at, key in changes:
        if at < len(keys):
            keys[at] = found[at] = float(key)
    finite = [(key, at) for at, key in enumerate(keys) if key < math.inf]
    ascending = list(found.ascending())
    assert sorted(ascending) == sorted(finite)
    assert [key for key, _ in ascending] == sorted(key for key, _ in finite)
    for bound in (0.0, 4.0, math.inf):
        assert list(found.at_most(bound)) == [at for key, at in finite if key <= bound]
    assert [found[at] for at in range(len(keys))] == keys


def test_the_least_of_many_is_found_without_looking_at_all():
    class Counted(list):
        reads = 0

        def __getitem__(self, at):
            Counted.reads += 1
            return super().__getitem__(at)

    for size, most in ((16, 12), (4096, 40)):
        found = Tournament([float(at * 7919 % size) for at in range(size)])
        found._tree, Counted.reads = Counted(found._tree), 0
        assert next(found.ascending())[0] == 0.0
        found[size // 2] = -1.0
        assert next(found.at_most(-1.0)) == size // 2
        assert Counted.reads <= 5 * most
