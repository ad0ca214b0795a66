import dataclasses
import hashlib
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from shunter.batching.page.layout import Claims, Order
from shunter.batching.page.records import GroupCommands, SlotIdentity
from shunter.plugins.control.fixed_policy import fixed_commands
from shunter.plugins.control.settings import (
    BatchingSettings,
    ModelSettings,
    NicSettings,
    PreemptionSettings,
    Settings,
    SettingsError,
    find,
    key_digest,
    load,
    override,
    parse,
)

FULL = """
[batching]
alpha = 0.25
threshold_cap = 64
threshold = 0
max_wait_ms = 2.5
mix_classes = true
ageing_ms = 0
ahead = 0
admission = true
margin_ms = 1.5

[models.resnet]
max_wait_ms = 10
caps = [32, 8]
weights = { strict = [1, 0.5], best_effort = [0, 1] }
preferences = { best_effort = [1] }

[models."a.b"]

[controller]
interval_ms = 50

[nic]
enabled = true
host = "::"
port = 9000
tcp = false
unix = "/run/nic"
key_file = "key"
encrypt = true
spin_us = 50
queue_mb = 128
keys_file = "keys.toml"
strict = "keyed"
xdp = "eth0"
verbs = "mlx5_0"
threads = 4

[preemption]
strict = "edf"
best_effort = "concurrent"
exclusive = true
max_hold_ms = 500
longest_park_ms = 250
padding = "never"
slow_down = 0.05
memory_floor_mb = 512
"""


@pytest.fixture
def write(tmp_path):
    """Writes shunter.toml and returns its path."""

    def write(text):
        path = tmp_path / "shunter.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_without_a_file_the_defaults_of_the_papers_hold():
    assert load(None) == Settings()
    assert (BatchingSettings().alpha, BatchingSettings().threshold_cap) == (0.5, 128.0)


def test_an_empty_file_means_the_defaults(write):
    assert load(write("")) == Settings()


def test_every_key_is_read(write):
    found = load(write(FULL))
    expected = BatchingSettings(0.25, 64, 0, 2.5, True, 0, 0, True, 1.5)
    assert found.batching == expected
    assert found.controller.interval_ms == 50
    resnet = found.models["resnet"]
    assert resnet.caps == (32, 8)
    assert resnet.weights == ((1, 0.5), (0, 1))
    assert resnet.preferences == ((), (1,))
    keys = "key", True, 50, 128, "keys.toml", "keyed", "eth0", "mlx5_0", 4
    assert found.nic == NicSettings(True, "::", 9000, False, "/run/nic", *keys)
    preemption = PreemptionSettings("edf", "concurrent", True, 500, 250, "never", 0.05, 512)
    assert found.preemption == preemption
    assert preemption.strict_order is Order.EDF
    assert preemption.best_effort_order is Order.CONCURRENT


def test_a_model_inherits_what_it_does_not_set(write):
    found = load(write(FULL))
    assert found.for_model("resnet").max_wait_ms == 10
    assert found.for_model("resnet").alpha == 0.25
    for name in ("a.b", "not in the file"):
        assert found.for_model(name) == ModelSettings(0.25, 64, 0, 2.5, True, 0, 0, True, 1.5)


def test_by_default_the_turns_are_those_of_the_paper_but_strict_models_run_at_once():
    assert PreemptionSettings().strict_order is Order.CONCURRENT
    assert PreemptionSettings().best_effort_order is Order.ROUND_ROBIN


def test_other_settings_of_the_front_end_have_another_number():
    enabled = NicSettings(enabled=True)
    assert NicSettings(port=9000).number == 0 != enabled.number
    assert dataclasses.replace(enabled).number == enabled.number
    assert dataclasses.replace(enabled, port=9000).number != enabled.number


def test_settings_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        BatchingSettings().alpha = 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[batching]\nalpha = 1",
            "batching.alpha = 1 is not allowed; allowed: a number from 0 to 0.999999",
        ),
        ("[batching]\nalpha = nan", "batching.alpha = nan is not allowed"),
        ("[batching]\nalpha = true", "batching.alpha = True is not allowed"),
        ('[batching]\nalpha = "0.5"', "batching.alpha = '0.5' is not allowed"),
        ("[batching]\nthreshold_cap = 0", "allowed: a number from 1 to 1000000"),
        ("[batching]\nthreshold = 0.5", "allowed: 0 or a number from 1 to 1000000"),
        ("[batching]\nthreshold = false", "batching.threshold = False is not allowed"),
        ("[batching]\nmax_wait_ms = -1", "allowed: a number from 0 to 3600000"),
        ("[batching]\nmax_wait_ms = inf", "batching.max_wait_ms = inf is not allowed"),
        (
            "[batching]\nmix_classes = 1",
            "batching.mix_classes = 1 is not allowed; allowed: true or false",
        ),
        ("[batching]\nageing_ms = 1e99", "batching.ageing_ms = 1e+99 is not allowed"),
        ("[batching]\nahead = 2", "allowed: a whole number from 0 to 1"),
        ("[batching]\nahead = 1.0", "allowed: a whole number from 0 to 1"),
        (
            "[batching]\ncaps = [1]",
            "batching.caps = [1] is unknown; allowed: admission, ageing_ms, ahead, alpha",
        ),
        (
            "[batching]\nalhpa = 0.5",
            "batching.alhpa = 0.5 is unknown; allowed: admission, ageing_ms, ahead, alpha",
        ),
        (
            "[controller]\ninterval_ms = 19",
            "controller.interval_ms = 19 is not allowed; allowed: a number from 20",
        ),
        (
            "[contoller]",
            "contoller = {} is unknown; allowed: autoscaling, batching, classes, configuration, "
            "controller, mig, models, nic",
        ),
        (
            "alpha = 0.5",
            "alpha = 0.5 is unknown; allowed: autoscaling, batching, classes, configuration, "
            "controller, mig, models, nic",
        ),
        ("batching = 3", "batching = 3 is not allowed; allowed: a table"),
        ("models = []", "models = [] is not allowed; allowed: a table"),
        ("[models]\nx = 1", "models.x = 1 is not allowed; allowed: a table"),
        ("[models.x]\nfoo = 1", "models.x.foo = 1 is unknown; allowed: admission, ageing_ms"),
        (
            "[models.x]\ncaps = 3",
            "models.x.caps = 3 is not allowed; allowed: a list of at most 8 entries",
        ),
        ("[models.x]\ncaps = [1.5]", "each 0 or a batch size"),
        ("[models.x]\ncaps = [1, 1, 1, 1, 1, 1, 1, 1, 1]", "a list of at most 8 entries"),
        ("[models.x]\nweights = [1]", "allowed: a table with the keys strict, best_effort"),
        ("[models.x.weights]\nstrickt = [1]", "allowed: a table with the keys strict, best_effort"),
        ("[models.x.weights]\nstrict = [1.1]", "each a number from 0 to 1"),
        ("[models.x.preferences]\nstrict = [0.5]", "each a whole number from 0 to 1000"),
        ("[nic]\nenabled = 1", "nic.enabled = 1 is not allowed; allowed: true or false"),
        ('[nic]\nhost = ""', "nic.host = '' is not allowed; allowed: an address, IPv4 or IPv6"),
        ("[nic]\nport = 65536", "nic.port = 65536 is not allowed; allowed: a whole number from 0"),
        ('[nic]\nunix = "a\\u0000"', "is not allowed; allowed: a path"),
        ("[nic]\nkey_file = 3", "nic.key_file = 3 is not allowed; allowed: a path"),
        ("[nic]\nencrypt = 1", "nic.encrypt = 1 is not allowed; allowed: true or false"),
        (
            "[nic]\nencrypt = true",
            "nic.encrypt = True is not allowed; allowed: false, or nic.key_file is set",
        ),
        ("[nic]\nspin_us = -1", "allowed: a whole number from 0 to 1000000"),
        ("[nic]\nqueue_mb = 0", "allowed: a whole number from 1 to 65536"),
        (
            '[preemption]\nstrict = "round_robin"',
            "preemption.strict = 'round_robin' is not allowed; allowed: concurrent or fifo or edf",
        ),
        (
            '[preemption]\nbest_effort = "edf"',
            "preemption.best_effort = 'edf' is not allowed; allowed: round_robin or concurrent",
        ),
        (
            "[preemption]\npadding = true",
            "preemption.padding = True is not allowed; allowed: auto or always or never",
        ),
        ("[preemption]\npadding = []", "preemption.padding = [] is not allowed"),
        ("[preemption]\nexclusive = 1", "allowed: true or false"),
        ("[preemption]\nmax_hold_ms = 0", "allowed: a number from 1 to 3600000"),
        ("[preemption]\nlongest_park_ms = 0", "allowed: a number from 1 to 3600000"),
        ("[preemption]\nslow_down = 2", "allowed: a number from 0 to 1"),
        ("[preemption]\nmemory_floor_mb = 0.5", "allowed: a whole number from 0 to"),
        ("[preemption]\npark = 1", "preemption.park = 1 is unknown; allowed: best_effort"),
        ("[nic]\nkey-file = 3", "nic.key_file = 3 is not allowed; allowed: a path"),
        (
            "[nic]\nkey-file = 'a'\nkey_file = 'b'",
            "key-file and key_file are the same key; allowed: one of them",
        ),
        ("[nic]\nkey = 1", "nic.key = 1 is unknown; allowed: enabled, encrypt, host, key_file"),
    ],
)
def test_a_mistake_names_file_key_value_and_what_is_allowed(write, text, message):
    path = write(text)
    with pytest.raises(SettingsError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["[batching", "x = " + "[" * 5000, "x = 1\nx = 2"])
def test_a_file_that_is_not_toml_is_named(write, text):
    path = write(text)
    with pytest.raises(SettingsError, match=f"{path} is not TOML"):
        load(path)


def test_a_number_that_is_too_long_to_be_shown_is_named(write):
    path = write("[batching]\nthreshold_cap = 0x" + "f" * 10_000)
    with pytest.raises(SettingsError, match=r"batching\.threshold_cap = a number that is too long"):
        load(path)


def test_a_file_that_is_not_text_is_named(tmp_path):
    path = tmp_path / "shunter.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match="is not TOML"):
        load(path)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(SettingsError, match=r"missing cannot be read: No such file"):
        load(tmp_path / "missing")
    with pytest.raises(SettingsError, match=r"cannot be read: Is a directory"):
        load(tmp_path)


def test_what_would_hold_its_reader_up_for_ever_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SettingsError, match="pipe cannot be read: allowed: a regular file"):
        load(tmp_path / "pipe")
    assert load(Path(os.devnull)) == Settings()


def test_an_explicit_file_goes_before_the_variable_and_that_before_the_folder(write, tmp_path):
    here = write("")
    environ = {"SHUNTER_CONFIG": "other.toml"}
    assert find(tmp_path / "x.toml", environ, tmp_path) == tmp_path / "x.toml"
    assert find(None, environ, tmp_path) == tmp_path / "other.toml"
    assert find(None, {"SHUNTER_CONFIG": "/etc/x.toml"}, tmp_path).as_posix() == "/etc/x.toml"
    assert find(None, {"SHUNTER_CONFIG": ""}, tmp_path) == here
    assert find(None, {}, tmp_path) == here


def test_a_folder_without_a_file_means_the_defaults(tmp_path):
    assert find(None, {}, tmp_path) is None
    assert find(None, {}, tmp_path / "missing") is None


def test_a_named_file_that_is_missing_is_an_error_and_not_the_defaults(tmp_path):
    with pytest.raises(SettingsError):
        load(find(None, {"SHUNTER_CONFIG": "missing.toml"}, tmp_path))
    (tmp_path / "shunter.toml").symlink_to(tmp_path / "missing")
    with pytest.raises(SettingsError):
        load(find(None, {}, tmp_path))


@pytest.mark.parametrize(
    ("text", "has_lists"),
    [
        ("threshold = 4", False),
        ("caps = []\nweights = {}", False),
        ("caps = [8]", True),
        ("weights = { best_effort = [0] }", True),
        ("preferences = { strict = [0, 1] }", True),
    ],
)
def test_lists_by_worker_group_can_be_left_out(write, text, has_lists):
    found = load(write(f"[batching]\nmargin_ms = 7\n[models.resnet]\n{text}"))
    assert found.for_model("resnet").has_lists is has_lists
    without = found.for_model("resnet").without_lists()
    assert not without.has_lists
    assert without.threshold == found.for_model("resnet").threshold
    assert without.margin_ms == 7
    assert not found.for_model("another").has_lists


def test_a_hyphen_in_a_key_is_as_good_as_an_underscore(write):
    text = """
    [preemption]
    best-effort = "concurrent"
    [models.best-effort.weights]
    best-effort = [0.5]
    """
    found = load(write(text))
    assert found.preemption.best_effort == "concurrent"
    assert found.models["best-effort"].weights == ((), (0.5,))


def test_the_schema_has_the_bounds_the_default_and_the_meaning_of_every_key():
    sections = TypeAdapter(Settings).json_schema()["$defs"]
    for name, section in sections.items():
        for key, told in section["properties"].items():
            inherited = name == "ModelSettings" and key in BatchingSettings.__slots__
            assert told.get("description") or inherited, (name, key)
            assert "default" in told, (name, key)
    ageing = sections["BatchingSettings"]["properties"]["ageing_ms"]
    assert (ageing["minimum"], ageing["maximum"], ageing["default"]) == (0, 3_600_000, 1000)


def test_what_is_set_over_a_section_is_checked_like_it():
    assert override(NicSettings(), "nic", {"port": 9}).port == 9
    with pytest.raises(SettingsError, match=r"nic.host = '' is not allowed; allowed: an address"):
        override(NicSettings(), "nic", {"host": ""})


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["strict", "best_effort", "caps", "weights", "alpha", "x"]), inner
        )
    ),
    max_leaves=6,
)


@settings(deadline=None, database=None)
@given(
    st.dictionaries(
        st.sampled_from(["batching", "models", "controller", "preemption", "x"]), VALUES
    )
)
def test_any_document_is_settings_or_a_settings_error(document):
    try:
        assert isinstance(parse(document), Settings)
    except SettingsError as error:
        assert "allowed" in str(error)


# ---- what becomes of them on the page


def commands(text, write, **identity):
    fixed = {"slot_state": 1, "registered_max_wait_us": 5000, "group_count": 1}
    identity = SlotIdentity(**fixed | {"model_name": "resnet"} | identity)
    return fixed_commands(load(write(text)).for_model("resnet"), identity)


def test_settings_become_the_numbers_of_the_page(write):
    found = commands(FULL, write, group_count=3, registered_max_wait_us=20_000)
    assert found.slot.alpha_millionths == 250_000
    assert found.slot.threshold_cap_milli == 64_000
    assert found.slot.threshold_fixed_milli == 0
    assert found.slot.max_wait_us == 10_000
    assert found.slot.mix_classes == 1
    assert found.slot.ageing_us == 0
    assert found.slot.ahead_batches == 0
    assert found.groups == (
        GroupCommands(32, (1000, 0), (0, 1)),
        GroupCommands(8, (500, 1000), (0, 0)),
        GroupCommands(0, (1000, 1000), (0, 0)),
    )


def test_the_registered_wait_bounds_the_commanded_one(write):
    assert commands("", write).slot.max_wait_us == 5000
    assert commands("[batching]\nmax_wait_ms = 4.5", write).slot.max_wait_us == 4500
    assert commands("[batching]\nmax_wait_ms = 6", write).slot.max_wait_us == 5000


def test_a_tiny_share_is_not_never(write):
    text = "[models.resnet]\nweights = { strict = [0.00001] }"
    assert commands(text, write).groups[0].weight_milli == (1, 1000)


def test_a_class_that_no_group_would_take_is_an_error(write):
    text = "[models.resnet]\nweights = { strict = [0, 0, 1] }"
    with pytest.raises(ValueError, match=r"models.resnet.weights.strict is 0 for all 2 worker"):
        commands(text, write, group_count=2)
    assert len(commands(text, write, group_count=3).groups) == 3
    assert commands(text, write, group_count=0).groups == ()


@pytest.mark.parametrize(
    ("section", "model", "claims"),
    [
        ({}, "m", Claims.ALL),
        ({"allow_strict": "all"}, "m", Claims.ALL),
        ({"allow_strict": "none"}, "m", Claims.NONE),
        ({"allow_strict": "none"}, "no", Claims.NONE),
        ({"allow_strict": []}, "m", Claims.NONE),
        ({"allow_strict": ["m"]}, "m", Claims.ALL),
        ({"allow_strict": ["m"]}, "n", Claims.NONE),
        ({"strict_secret_file": "s"}, "m", Claims.WITH_KEY),
        ({"allow_strict": ["m"], "strict_secret_file": "s"}, "m", Claims.WITH_KEY),
        ({"allow_strict": ["m"], "strict_secret_file": "s"}, "n", Claims.NONE),
    ],
)
def test_the_operator_says_who_may_claim_to_be_strict(section, model, claims):
    assert parse({"classes": section}).classes.claims(model) is claims


@pytest.mark.parametrize(
    ("section", "named"),
    [
        ({"allow_strict": "some"}, "classes.allow_strict"),
        ({"allow_strict": ["m", 7]}, "classes.allow_strict"),
        ({"allow_strict": True}, "classes.allow_strict"),
        ({"allow_strict": "none", "strict_secret_file": "s"}, "classes.allow_strict"),
        ({"strict_secret_file": ""}, "classes.strict_secret_file"),
        ({"allow": "all"}, "classes.allow"),
    ],
)
def test_what_is_wrong_about_claims_is_named(section, named):
    with pytest.raises(SettingsError, match=named):
        parse({"classes": section})


@pytest.mark.parametrize(
    ("content", "mode", "problem"),
    [
        (b"open sesame\n", 0o600, "ASCII without spaces"),
        (b"\n", 0o600, "ASCII without spaces"),
        ("schlüssel".encode(), 0o600, "ASCII without spaces"),
        (b"sesame", 0o640, "chmod 600"),
        (None, 0o600, "cannot be read"),
    ],
)
def test_a_secret_that_cannot_be_one_is_named_and_not_told(tmp_path, content, mode, problem):
    path = tmp_path / "secret"
    if content is not None:
        path.write_bytes(content)
        path.chmod(mode)
    classes = parse({"classes": {"strict_secret_file": str(path)}}).classes
    with pytest.raises(SettingsError, match=problem) as error:
        key_digest(classes)
    assert "sesame" not in str(error.value)


def test_of_a_secret_only_its_digest_is_kept(tmp_path):
    path = tmp_path / "secret"
    path.write_text("sesame\n")
    path.chmod(0o600)
    classes = parse({"classes": {"strict_secret_file": str(path)}}).classes
    assert key_digest(classes) == hashlib.sha256(b"sesame").digest()
    assert not any(key_digest(parse({}).classes))


def test_a_class_that_its_only_groups_shall_not_take_is_an_error(write):
    text = "[models.resnet.weights]\nstrict = [0, 1]\n"
    identity = SlotIdentity(slot_state=1, group_count=2, model_name="resnet")
    settings = load(write(text)).for_model("resnet")
    fixed_commands(settings, identity)
    fixed_commands(settings, identity, [2, 0])
    fixed_commands(settings, identity, [1, 3])
    fixed_commands(settings, identity, [2, 2])  # nobody takes it anyway
    with pytest.raises(ValueError, match=r"weights\.strict is 0 for all 1 worker groups that take"):
        fixed_commands(settings, identity, [1, 2])


@pytest.mark.parametrize("key", ["class", "slo_ms", "slo-ms", "configuration", "max_batch"])
def test_a_key_of_an_archive_is_sent_there(key):
    with pytest.raises(SettingsError) as refused:
        parse({"models": {"resnet": {key: 1}}})
    name = key.replace("-", "_")
    said = f"; {name} belongs into model-config.yaml of the archive, below shunter:"
    assert str(refused.value).endswith(said) and "did you mean" not in str(refused.value)
    with pytest.raises(SettingsError, match="; did you mean caps"):
        parse({"models": {"resnet": {"cap": 1}}})
