"""Sets of cores, GPUs and MIG devices as slices alike."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.allocator.cpus.topology import Cpu, Topology
from shunter.allocator.devices.geometry import parse
from shunter.allocator.devices.inventory import take_stock
from shunter.allocator.devices.slices import ComputeSlice, core_sets, of_gpu, splits


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


def test_mig_devices_are_slices_with_their_shares(machine):
    for each in sorted(parse("4g,2g,1g", machine.gpu.profiles)):
        machine.gpu.create(each)
    (record,) = take_stock()
    found = of_gpu(record)
    assert [each.kind for each in found] == ["4g.20gb", "2g.10gb", "1g.5gb"]
    assert [each.compute for each in found] == [56 / 98, 28 / 98, 14 / 98]
    assert [each.bandwidth for each in found] == [4 / 8, 2 / 8, 1 / 8]
    assert {each.device for each in found} == {machine.gpu.uuid}
    assert all(each.name.startswith("MIG-") for each in found)


def test_a_gpu_without_mig_is_one_slice(machine):
    with machine.store.change() as state:
        state.gpus[0].mig = state.gpus[0].pending = False
    (record,) = take_stock()
    (whole,) = of_gpu(record)
    assert (whole.name, whole.compute, whole.bandwidth) == (machine.gpu.uuid, 1.0, 1.0)
    assert whole.memory_bytes == 40 << 30


@pytest.mark.parametrize(
    ("topology", "widths", "found"),
    [
        (host(4), [2, 1, 1], ["cpus:0-1", "cpus:2", "cpus:3"]),
        (host(2, 2), [2, 2], ["cpus:0-1", "cpus:2-3"]),
        (host(2, 2), [3], None),  # an instance stays within a node
        (host(2, 2), [2, 1], ["cpus:0-1", "cpus:2"]),
        (host(2, smt=2), [2, 2], ["cpus:0-1", "cpus:2-3"]),
        (host(2), [1, 1, 1], None),
        (host(2), [], []),
    ],
)
def test_the_cores_of_a_host_are_split_into_sets(topology, widths, found):
    sets = core_sets(topology, widths, 1 << 30)
    assert (sets and [each.name for each in sets]) == (found if found else sets)
    assert (sets is None) == (found is None)


def test_a_set_that_is_wanted_again_keeps_its_cores():
    before = core_sets(host(4), [2, 2], 1)
    after = core_sets(host(4), [2, 1, 1], 1, before[1:])
    assert [each.name for each in after] == ["cpus:2-3", "cpus:0", "cpus:1"]


def test_what_was_kept_gives_way_when_nothing_else_fits():
    in_the_way = [ComputeSlice("cpus:1", "host", "1 core", 0.25, 1.0, 1, (1,))]
    other = [ComputeSlice("cpus:2", "host", "1 core", 0.25, 1.0, 1, (2,))]
    found = core_sets(host(2, 2), [2, 1, 1], 1, in_the_way + other)
    assert sorted(len(each.cpus) for each in found) == [1, 1, 2]


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=3),
    st.lists(st.integers(1, 6), max_size=8),
    st.lists(st.integers(1, 6), max_size=8),
)
def test_sets_never_overlap_and_stay_within_a_node(nodes, first, second):
    topology = host(*nodes)
    before = core_sets(topology, first, 1) or ()
    after = core_sets(topology, second, 1, before)
    assert (after is None) == (core_sets(topology, second, 1) is None)
    used = [cpu for each in after or () for cpu in each.cpus]
    assert len(used) == len(set(used))
    node = {cpu.id: cpu.node for cpu in topology.cpus}
    assert all(len({node[cpu] for cpu in each.cpus}) == 1 for each in after or ())
    if after is not None:
        assert sorted(len(each.cpus) for each in after) == sorted(second)


def test_every_split_of_a_host_uses_all_cores_and_can_be_placed():
    found = list(splits(host(2, 2)))
    assert sorted(found) == [(1, 1, 1, 1), (2, 1, 1), (2, 2)]
    assert all(core_sets(host(2, 2), split, 1) for split in found)
    assert [len(list(splits(host(n)))) for n in (1, 2, 3, 4, 5)] == [1, 2, 3, 5, 7]
    assert sorted(splits(host(4), most=2)) == [(2, 2), (3, 1), (4,)]
