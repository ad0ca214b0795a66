import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.allocator.cpus.cores import choose_cores, free_cores, place_all
from shunter.allocator.cpus.topology import Cpu, Topology


def host(*nodes, smt=1, quota=math.inf):
    """Nodes of so many cores; siblings come after all first threads, as Linux counts."""
    cores = [node for node, count in enumerate(nodes) for _ in range(count)]
    return Topology(
        tuple(
            Cpu(thread * len(cores) + core, core, node)
            for thread in range(smt)
            for core, node in enumerate(cores)
        ),
        quota,
    )


PAIRS = Topology(tuple(Cpu(cpu, cpu - cpu % 2) for cpu in range(8)))
"""Four cores whose siblings are neighbours."""


@pytest.mark.parametrize(
    ("topology", "threads", "taken", "chosen"),
    [
        (host(4), 1, [], (0,)),
        (host(4), 4, [], (0, 1, 2, 3)),
        (host(4), 5, [], None),
        (host(4), 2, [0, 2], (1, 3)),
        (host(4), 3, [0, 2], None),
        # physical cores before siblings, whatever their numbers are
        (host(4, smt=2), 4, [], (0, 1, 2, 3)),
        (host(4, smt=2), 5, [], (0, 1, 2, 3, 4)),
        (PAIRS, 3, [], (0, 2, 4)),
        (PAIRS, 5, [], (0, 1, 2, 4, 6)),
        # a sibling of somebody's CPU comes last
        (host(4, smt=2), 3, [0], (1, 2, 3)),
        (host(4, smt=2), 4, [0], (1, 2, 3, 4)),
        (PAIRS, 2, [1, 2], (4, 6)),
        # the node that is filled best
        (host(4, 2), 2, [], (4, 5)),
        (host(4, 2), 3, [], (0, 1, 2)),
        (host(4, 4), 2, [0], (1, 2)),
        (host(4, 4), 1, [4, 5, 6], (7,)),
        # never across nodes, even where all together are enough
        (host(2, 2), 3, [], None),
        (host(4, 4), 3, [0, 1, 4, 5], None),
        # cores of its own elsewhere before siblings of others here
        (host(2, 4, smt=2), 2, [0, 1], (2, 3)),
        (host(2, 2, smt=2), 3, [], (0, 1, 4)),
    ],
)
def test_an_instance_gets_the_best_cores_of_one_node(topology, threads, taken, chosen):
    assert choose_cores(topology, threads, taken) == chosen


@pytest.mark.parametrize(
    ("topology", "threads", "taken", "shared", "chosen"),
    [
        # free ones first, then those of the instances that go
        (host(4), 2, [0, 1], [0, 1], (2, 3)),
        (host(4), 3, [0, 1], [0, 1], (0, 2, 3)),
        (host(4), 4, [0, 1, 2, 3], [0, 1, 2, 3], (0, 1, 2, 3)),
        # those of others never
        (host(4), 2, [0, 1, 2, 3], [2], None),
        (host(4), 1, [0, 1, 2, 3], [2], (2,)),
        # a free node before a shared one that would be filled better
        (host(4, 2), 2, [4, 5], [4, 5], (0, 1)),
        # whole cores before the free half of one that is still in use
        (PAIRS, 2, [0, 2], [0, 2], (4, 6)),
        (PAIRS, 3, [0, 2], [0, 2], (1, 4, 6)),
        # the free half of a core that is free soon before a sibling of its own
        (host(4, smt=2), 4, [0, 1], [0, 1], (2, 3, 4, 5)),
    ],
)
def test_during_a_change_over_cores_are_shared_with_those_that_go(
    topology, threads, taken, shared, chosen
):
    assert choose_cores(topology, threads, taken, shared) == chosen


HOSTS = st.builds(
    host,
    st.integers(1, 6),
    st.integers(1, 6),
    st.integers(0, 6),
    smt=st.integers(1, 2),
)


@given(st.data(), HOSTS, st.integers(1, 8))
def test_chosen_cpus_are_distinct_allowed_of_one_node_and_nobody_elses(data, topology, threads):
    ids = [cpu.id for cpu in topology.cpus]
    taken = data.draw(st.sets(st.sampled_from(ids)))
    shared = data.draw(st.sets(st.sampled_from(sorted(taken)))) if taken else set()
    chosen = choose_cores(topology, threads, taken, shared)
    nodes = {cpu.id: cpu.node for cpu in topology.cpus}
    usable = [node for cpu, node in nodes.items() if cpu not in taken - shared]
    if chosen is None:
        assert all(usable.count(node) < threads for node in topology.nodes)
    else:
        assert len(chosen) == len(set(chosen)) == threads
        assert not set(chosen) & (taken - shared)
        assert len({nodes[cpu] for cpu in chosen}) == 1
        assert list(chosen) == sorted(chosen)


@given(HOSTS, st.integers(1, 4))
def test_one_after_another_they_fill_the_host_without_overlap(topology, threads):
    taken = set()
    while (cores := choose_cores(topology, threads, taken)) is not None:
        assert not taken & set(cores)
        taken |= set(cores)
    left = [cpu.node for cpu in topology.cpus if cpu.id not in taken]
    assert all(left.count(node) < threads for node in topology.nodes)


@pytest.mark.parametrize(
    ("topology", "taken", "free"),
    [
        (host(4, 2), [], [4, 2]),
        (host(4, 2, smt=2), [], [4, 2]),
        # a core is free only with all its siblings
        (host(4, 2, smt=2), [0, 6, 10], [3, 1]),
        (host(4, 4, quota=5.5), [], [4, 1]),
        (host(4, 4, quota=0.5), [], [1, 0]),
        (host(2), [0, 1], [0]),
    ],
)
def test_free_cores_are_counted_by_node(topology, taken, free):
    assert free_cores(topology, taken) == free


def test_instances_are_placed_largest_first_and_told_in_their_order():
    assert place_all(host(4, 2), [1, 4, 1]) == [(4,), (0, 1, 2, 3), (5,)]
    assert place_all(host(2, 2), [1, 3]) is None
    assert place_all(host(2), []) == []
