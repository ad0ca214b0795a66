import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.allocator.planning.configuration import (
    MAX_BATCH,
    MAX_GROUPS,
    MAX_INSTANCES,
    MAX_THREADS,
    ConfigurationError,
    InstanceGroup,
    format_configuration,
    layout,
    parse_configuration,
    with_ceiling,
)

GROUPS = st.builds(
    InstanceGroup,
    st.integers(1, MAX_INSTANCES),
    st.integers(0, MAX_THREADS),
    st.integers(1, MAX_BATCH),
)


def test_a_configuration_reads_as_the_paper_writes_it():
    assert parse_configuration("1x8x32,2x4x16") == (
        InstanceGroup(instances=1, threads=8, batch=32),
        InstanceGroup(instances=2, threads=4, batch=16),
    )


def test_spaces_between_and_zero_threads_are_fine():
    assert parse_configuration(" 1x0x1, 2x4x16 ") == (
        InstanceGroup(1, 0, 1),
        InstanceGroup(2, 4, 16),
    )


@given(st.lists(GROUPS, min_size=1, max_size=MAX_GROUPS))
def test_what_is_written_reads_as_the_same(groups):
    assert parse_configuration(format_configuration(groups)) == tuple(groups)


FORM = "is not INSTANCESxTHREADSxBATCH such as 2x4x16 (threads 0: as the handler likes)"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", f"'': '' {FORM}"),
        ("2x4", f"'2x4': '2x4' {FORM}"),
        ("2x4x16,", f"'2x4x16,': '' {FORM}"),
        ("2x-4x16", f"'2x-4x16': '2x-4x16' {FORM}"),
        ("2X4X16", f"'2X4X16': '2X4X16' {FORM}"),
        ("٢x4x16", f"'٢x4x16': '٢x4x16' {FORM}"),
        ("2x4x1600000", f"'2x4x1600000': '2x4x1600000' {FORM}"),
        ("0x4x16", "'0x4x16': instances 0; allowed: 1 to 9999"),
        ("10000x4x16", "'10000x4x16': instances 10000; allowed: 1 to 9999"),
        ("1x10000x16", "'1x10000x16': threads 10000; allowed: 0 to 9999"),
        ("1x1x0", "'1x1x0': batch 0; allowed: 1 to 999999"),
        (",".join(["1x1x1"] * 9), f"'{','.join(['1x1x1'] * 9)}': 9 groups, at most 8"),
    ],
)
def test_anything_else_is_refused_with_what_is_allowed(text, message):
    with pytest.raises(ConfigurationError) as error:
        parse_configuration(text)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("text", "ceiling", "expected"),
    [
        ("2x1x4", 64, "2x1x64"),
        ("1x2x8,1x1x4", 64, "1x2x64,1x1x32"),
        ("1x8x64,1x1x1", 8, "1x8x8,1x1x1"),
        ("1x1x1", 1, "1x1x1"),
    ],
)
def test_caps_keep_their_ratio(text, ceiling, expected):
    assert with_ceiling(parse_configuration(text), ceiling) == parse_configuration(expected)


def test_a_layout_is_the_processes_and_not_their_caps():
    assert layout(parse_configuration("2x1x8,1x2x4")) == layout(parse_configuration("1x2x9,2x1x3"))
    assert layout(parse_configuration("2x1x8")) != layout(parse_configuration("1x2x8"))
