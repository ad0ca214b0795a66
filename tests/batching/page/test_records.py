import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.batching.page import codec, layout
from shunter.batching.page.codec import decode, encode
from shunter.batching.page.records import (
    GroupCommands,
    GroupTelemetry,
    NetworkTelemetry,
    PageHeader,
    SlotCommands,
    SlotIdentity,
    SlotNetwork,
    SlotTelemetry,
)

SEQUENCES = {"slot_sequence", "command_sequence"}
KINDS = [
    ("identity", SlotIdentity),
    ("telemetry", SlotTelemetry),
    ("group_telemetry", GroupTelemetry),
    ("commands", SlotCommands),
    ("group_commands", GroupCommands),
    ("network", SlotNetwork),
    ("network_telemetry", NetworkTelemetry),
]
SLOT_WORDS = layout.SLOT_SIZE // 8


@pytest.mark.parametrize(("section", "kind"), KINDS)
def test_a_record_has_every_field_of_its_section(section, kind):
    declared = [p.field for p in layout.SLOT_FIELDS.values() if p.section.name == section]
    names = {field.name for field in declared} - SEQUENCES
    assert {plan.name for plan in codec._plans(kind)} == names


@pytest.mark.parametrize("kind", [kind for _, kind in KINDS] + [PageHeader])
def test_defaults_are_in_their_ranges_and_of_the_right_length(kind):
    record = kind()
    for plan in codec._plans(kind):
        value = getattr(record, plan.name)
        words = value if plan.is_tuple else (value,)
        assert plan.is_text or len(words) == (1 if plan.is_mask else plan.count)
        assert plan.is_text or all(plan.low <= word <= plan.high for word in words)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=8, max_size=8), st.sampled_from(KINDS))
def test_whatever_stands_in_the_page_is_cut_to_the_stated_range(seed, section_and_kind):
    _, kind = section_and_kind
    words = memoryview(bytearray(layout.SLOT_SIZE)).cast("q")
    for i in range(SLOT_WORDS):
        words[i] = seed[i % 8]
    record = decode(kind, words)
    for plan in codec._plans(kind):
        value = getattr(record, plan.name)
        assert plan.is_text or all(
            plan.low <= word <= plan.high for word in (value if plan.is_tuple else (value,))
        )


def drawn(kind):
    def of(plan):
        if plan.is_text:
            return st.text("aé-0", max_size=4 * plan.count)
        word = st.integers(plan.low, plan.high)
        return st.tuples(*[word] * plan.count) if plan.is_tuple else word

    return st.builds(kind, **{plan.name: of(plan) for plan in codec._plans(kind)})


@given(drawn(SlotCommands), drawn(GroupCommands))
def test_records_come_back_as_they_were_stored(commands, group):
    words = memoryview(bytearray(layout.SLOT_SIZE)).cast("q")
    encode(commands, words)
    encode(group, words, 3 * layout.GROUP_STRIDE // 8)
    assert decode(SlotCommands, words) == commands
    assert decode(GroupCommands, words, 3 * layout.GROUP_STRIDE // 8) == group
    assert decode(GroupCommands, words, 2 * layout.GROUP_STRIDE // 8).weight_milli == (0, 0)


def test_an_out_of_range_value_is_refused_by_name_before_anything_is_stored():
    words = memoryview(bytearray(layout.SLOT_SIZE)).cast("q")
    with pytest.raises(ValueError, match=r"ahead_batches = 2; allowed: 0 to 1"):
        encode(SlotCommands(alpha_millionths=7, ahead_batches=2), words)
    assert not any(words)


def test_a_name_ends_at_its_first_zero_and_bad_utf8_is_replaced():
    content = bytearray(layout.SLOT_SIZE)
    name, version = layout.SLOT_FIELDS["model_name"], layout.SLOT_FIELDS["model_version"]
    content[name.offset : name.offset + 8] = "größ\0x".encode()[:8].ljust(8, b"\0")
    content[version.offset : version.offset + version.field.width] = b"\xff" * 128
    identity = decode(SlotIdentity, memoryview(content).cast("q"))
    assert identity.model_name == "größ"
    assert identity.model_version == "\N{REPLACEMENT CHARACTER}" * 128
