"""How many instances there are: one a batch, kept for a while, within the memory."""

from hypothesis import given
from hypothesis import strategies as st

from shunter.allocator.placement.autoscaling import KeepAlive, Want, instances, total, within


def test_there_is_an_instance_for_every_batch_and_a_part_of_one_counts():
    assert [instances(count, 4) for count in (0, 1, 4, 5)] == [0, 1, 1, 2]
    assert total({"a": 5, "b": 128, "c": 0}, {"a": 4, "b": 128, "c": 1}) == 3


def test_one_that_was_not_needed_for_the_whole_time_ends_and_no_sooner():
    state = KeepAlive(keep_s=600).after(0, 5).after(1, 2)
    assert state.after(599, 2).target == 5
    assert state.after(600, 2).target == 2
    assert state.needed == 2


def test_some_stay_warm_though_nothing_comes():
    assert KeepAlive(keep_s=10, least=2).after(0, 7).after(100, 0).target == 2


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 6)), min_size=1, max_size=30),
    st.integers(1, 20),
)
def test_the_target_is_the_most_that_was_needed_lately(steps, keep):
    state, now, seen = KeepAlive(keep_s=keep), 0, []
    for gap, needed in steps:
        now += gap
        seen.append((now, needed))
        state = state.after(now, needed)
        assert state.target == max(count for at, count in seen if at + keep > now)


def want(model, needed, kept, once=0, each=1, **more):
    return Want(model, needed, kept, {"gpu": once}, {"gpu": each}, **more)


def test_what_one_model_keeps_makes_room_for_what_another_needs():
    wants = [want("idle", 0, 4), want("busy", 3, 3)]
    assert within(wants, {"gpu": 4}) == {"idle": 1, "busy": 3}


def test_weights_that_are_shared_are_counted_once():
    assert within([want("m", 3, 3, once=10)], {"gpu": 12}) == {"m": 2}


def test_strict_models_come_first_and_every_model_gets_one_before_another_gets_two():
    wants = [want("be", 2, 2, last_used=9), want("strict", 2, 2, is_strict=True)]
    assert within(wants, {"gpu": 2}) == {"be": 1, "strict": 1}
    assert within(wants, {"gpu": 1}) == {"be": 0, "strict": 1}
    assert within(wants, {"gpu": 3}) == {"be": 1, "strict": 2}


def test_every_kind_of_memory_counts():
    wants = [Want("m", 3, 3, {"host": 1}, {"host": 1, "gpu": 2})]
    assert within(wants, {"host": 100, "gpu": 5}) == {"m": 2}
    assert within(wants, {"host": 1, "gpu": 100}) == {"m": 0}


@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 5), st.integers(1, 5)),
        max_size=6,
    ),
    st.integers(0, 40),
)
def test_memory_is_never_exceeded_and_nobody_gets_more_than_it_wants(models, memory):
    wants = [
        want(str(at), needed, needed + extra, once, each)
        for at, (needed, extra, once, each) in enumerate(models)
    ]
    found = within(wants, {"gpu": memory})
    used = sum(
        found[each.model] * each.each["gpu"] + (each.once["gpu"] if found[each.model] else 0)
        for each in wants
    )
    assert used <= memory
    assert all(found[each.model] <= max(each.needed, each.kept) for each in wants)
