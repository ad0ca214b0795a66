"""The host as ``/sys`` and ``/proc`` tell it; each test builds trees of its own."""

import math
import os

import pytest

from shunter.allocator.cpus.cpu_list import format_cpu_list
from shunter.allocator.cpus.discovery import read_quota, read_topology
from shunter.allocator.cpus.topology import Cpu, Topology


class Host:
    """The two trees of a host."""

    def __init__(self, folder):
        self.sys, self.proc = folder / "sys", folder / "proc"
        self.sys.mkdir()
        self.proc.mkdir()

    def write(self, path, text):
        file = self.sys / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")

    def cpus(self, siblings, nodes, online=None):
        """Groups of SMT siblings, and the CPUs of each NUMA node."""
        for group in siblings:
            for cpu in group:
                folder = f"devices/system/cpu/cpu{cpu}/topology"
                self.write(f"{folder}/thread_siblings_list", format_cpu_list(group))
        every = [cpu for group in siblings for cpu in group]
        self.write("devices/system/cpu/online", format_cpu_list(online or every))
        for node, cpus in nodes.items():
            self.write(f"devices/system/node/node{node}/cpulist", format_cpu_list(cpus))

    def cgroup(self, text):
        (self.proc / "self").mkdir()
        (self.proc / "self/cgroup").write_text(text)

    def read(self, affinity):
        return read_topology(affinity, self.sys, self.proc)

    def quota(self):
        return read_quota(self.sys, self.proc)


@pytest.fixture
def host(tmp_path):
    return Host(tmp_path)


@pytest.fixture
def two_sockets(host):
    """Two sockets of four cores with two threads each; siblings are eight apart."""
    siblings = [(cpu, cpu + 8) for cpu in range(8)]
    host.cpus(siblings, {0: [0, 1, 2, 3, 8, 9, 10, 11], 1: [4, 5, 6, 7, 12, 13, 14, 15]})
    return host


def test_two_sockets_with_smt_are_read(two_sockets):
    found = two_sockets.read(range(16))
    assert [cpu.id for cpu in found.cpus] == list(range(16))
    assert [cpu.physical for cpu in found.cpus] == [*range(8), *range(8)]
    assert [cpu.node for cpu in found.cpus] == [0, 0, 0, 0, 1, 1, 1, 1] * 2
    assert (found.cores, found.nodes, found.limited) == (8, (0, 1), False)


def test_nodes_may_be_parts_of_a_socket_and_have_gaps_in_their_numbers(host):
    # One socket split in two nodes, and a third node with memory only.
    host.cpus([(0,), (1,), (2,), (3,)], {0: [0, 1], 5: [2, 3]})
    host.write("devices/system/node/node7/cpulist", "")
    assert [cpu.node for cpu in host.read(range(4)).cpus] == [0, 0, 5, 5]
    assert host.read(range(4)).nodes == (0, 5)


def test_only_allowed_cpus_that_are_online_count(two_sockets):
    two_sockets.write("devices/system/cpu/online", "0-11")
    found = two_sockets.read([2, 3, 10, 15])
    assert [cpu.id for cpu in found.cpus] == [2, 3, 10]
    assert found.cores == 2


def test_a_core_of_which_only_the_second_sibling_is_allowed_is_a_core(two_sockets):
    found = two_sockets.read([8, 9])
    assert (found.cores, [cpu.physical for cpu in found.cpus]) == (2, [0, 1])


def test_a_host_that_tells_nothing_is_one_node_of_cores(host):
    found = host.read([3, 1])
    assert found.cpus == (Cpu(1, 1, 0), Cpu(3, 3, 0))
    assert (found.cores, found.quota) == (2, math.inf)


def test_core_numbers_that_say_nothing_do_not_make_siblings(host):
    # Virtual machines leave them at -1, and some boards repeat them in each cluster.
    for cpu, core in enumerate([-1, -1, 0, 0]):
        host.write(f"devices/system/cpu/cpu{cpu}/topology/core_id", core)
    assert host.read(range(4)).cores == 4


@pytest.mark.parametrize("text", ["", "nonsense", "3-1", "0-99999999"])
def test_a_damaged_list_of_online_cpus_is_no_list(host, text):
    host.write("devices/system/cpu/online", text)
    assert len(host.read([0, 1]).cpus) == 2


def test_this_host_is_read():
    found = read_topology()
    assert {cpu.id for cpu in found.cpus} == os.sched_getaffinity(0)
    assert 1 <= found.cores <= len(found.cpus)


def test_a_part_of_a_topology_keeps_the_quota(two_sockets):
    part = Topology(two_sockets.read(range(16)).cpus, 3.5).only([4, 12, 99])
    assert [cpu.id for cpu in part.cpus] == [4, 12]
    assert (part.cores, part.quota, part.nodes) == (1, 3.5, (1,))


@pytest.mark.parametrize(
    ("quota", "cores", "limited"),
    [(math.inf, 4, False), (8, 4, False), (4.5, 4, True), (2.9, 2, True), (0.3, 1, True)],
)
def test_a_quota_bounds_the_cores(quota, cores, limited):
    found = Topology(tuple(Cpu(cpu, cpu % 4) for cpu in range(8)), quota)
    assert (found.cores, found.limited) == (cores, limited)


V1 = "4:memory:/box\n3:cpu,cpuacct:/box/inner\n1:cpuset:/other\n"


@pytest.mark.parametrize(
    ("cgroup", "files", "quota"),
    [
        ("0::/\n", {}, math.inf),
        ("0::/\n", {"cpu.max": "250000 100000"}, 2.5),
        ("0::/box\n", {"box/cpu.max": "max 100000"}, math.inf),
        ("0::/box\n", {"box/cpu.max": "50000 100000"}, 0.5),
        # the tightest of a group and those above it
        ("0::/a/b/c\n", {"a/cpu.max": "300000 100000", "a/b/c/cpu.max": "800000 100000"}, 3),
        ("0::/a/b\n", {"a/cpu.max": "max 100000", "a/b/cpu.max": "150000 100000"}, 1.5),
        # a group outside of what the container sees
        ("0::/../../box\n", {"cpu.max": "200000 100000"}, 2),
        ("0::/box\n", {"box/cpu.max": "1 0"}, math.inf),
        ("0::/box\n", {"box/cpu.max": "much"}, math.inf),
        (V1, {}, math.inf),
        (V1, {"cpu/box/cpu.cfs_quota_us": "150000", "cpu/box/cpu.cfs_period_us": "100000"}, 1.5),
        (
            V1,
            {
                "cpu,cpuacct/box/inner/cpu.cfs_quota_us": "-1",
                "cpu,cpuacct/box/inner/cpu.cfs_period_us": "100000",
                "cpu,cpuacct/cpu.cfs_quota_us": "25000",
                "cpu,cpuacct/cpu.cfs_period_us": "50000",
            },
            0.5,
        ),
        # of a hierarchy that has nothing to do with CPU time
        (V1, {"memory/box/cpu.cfs_quota_us": "1", "cpuset/other/cpu.max": "1 1"}, math.inf),
        ("nonsense\n\n::\n", {}, math.inf),
    ],
)
def test_the_quota_is_the_tightest_of_all_groups(host, cgroup, files, quota):
    host.cgroup(cgroup)
    for path, text in files.items():
        host.write(f"fs/cgroup/{path}", text)
    assert host.quota() == quota


def test_without_cgroups_there_is_no_quota(host):
    assert host.quota() == math.inf
