import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.allocator.cpus.cpu_list import MAX_CPU, CpuListError, format_cpu_list, parse_cpu_list


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("0", (0,)),
        ("0-3,8", (0, 1, 2, 3, 8)),
        ("8,0-3\n", (0, 1, 2, 3, 8)),
        (" 1 , 1-2 ", (1, 2)),
        (f"{MAX_CPU}", (MAX_CPU,)),
    ],
)
def test_a_cpu_list_is_read(text, cpus):
    assert parse_cpu_list(text) == cpus


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "''"),
        ("0,,1", "''"),
        ("a", "'a'"),
        ("-1", "'-1'"),
        ("1-", "'1-'"),
        ("3-1", "'3-1'"),
        ("0-7:2", "'0-7:2'"),
        ("٣", "'٣'"),
        ("0-999999999", "999999999"),
    ],
)
def test_a_bad_cpu_list_is_refused_with_the_part_that_is_bad(text, part):
    with pytest.raises(CpuListError) as caught:
        parse_cpu_list(text)
    assert part in str(caught.value)
    assert repr(text) in str(caught.value)


@given(st.sets(st.integers(0, MAX_CPU), min_size=1))
def test_a_formatted_cpu_list_reads_back(cpus):
    assert parse_cpu_list(format_cpu_list(cpus)) == tuple(sorted(cpus))


def test_a_formatted_cpu_list_is_short():
    assert format_cpu_list([8, 3, 2, 1, 0]) == "0-3,8"
    assert format_cpu_list([]) == ""
    with pytest.raises(CpuListError, match="CPU -1"):
        format_cpu_list([-1])
