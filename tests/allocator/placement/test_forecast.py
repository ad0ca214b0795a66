"""What may come: the mix of now, of before, and a batch more of each."""

import pytest

from shunter.allocator.placement.forecast import History, Likely, expected, more_of

A = (("strict", True, 2), ("light", False, 2))
B = (("strict", True, 2), ("heavy", False, 3))


def test_more_is_one_batch_more_of_each_model_alone_and_of_all():
    assert set(more_of(A)) == {
        (("strict", True, 3), ("light", False, 2)),
        (("strict", True, 2), ("light", False, 3)),
        (("strict", True, 3), ("light", False, 3)),
    }
    assert more_of((("a", True, 1),)) == ((("a", True, 2),),)


def test_now_and_before_share_as_they_are_told_to_and_surges_come_on_top():
    found = expected([A, A, B, B], {B: 1.0}, Likely(now=0.4, before=0.6, more=0.3))
    assert found[A] == pytest.approx(0.2)
    assert found[B] == pytest.approx(0.2 + 0.6)
    assert sum(found.values()) == pytest.approx(1.0 * (1 + 0.3))
    assert found[(("strict", True, 3), ("light", False, 2))] == pytest.approx(0.2 * 0.3 / 3)


def test_nothing_before_leaves_what_is_now():
    assert expected([A], {}, Likely(more=0.0)).keys() == {A, *more_of(A)}


def test_what_may_be_counts_until_experience_outweighs_it():
    history = History.of([A, B], intervals=10)
    assert history.known == {A: 0.5, B: 0.5}
    for _ in range(40):
        history = history.after([B])
    assert history.known[A] < 0.15
    assert sum(history.known.values()) == pytest.approx(1)


def test_known_is_taken_up_at_its_interval_only():
    history = History(every=3).after([A]).after([A])
    assert history.known == {}
    assert history.after([B]).known[A] == pytest.approx(2 / 3, rel=0.01)


def test_the_past_fades():
    history = History(half_life=5, every=1)
    for _ in range(5):
        history = history.after([A])
    for _ in range(25):
        history = history.after([B])
    assert history.known[A] < 0.04
