"""What users misspell is answered with what they may have meant, wherever they wrote it."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from shunter.batching.forming.classes import KEYS, STRICT_KEY, parse_terms
from shunter.batching.forming.spelling import hint
from shunter.handlers.queue.tensor_config import TensorConfigError, tensor_config
from shunter.nic_frontend.server.access import KeyFileError, read_keys
from shunter.plugins.cli import files, serve
from shunter.plugins.cli import main as cli
from shunter.plugins.control.settings import SettingsError, load
from shunter.plugins.errors import UserError
from shunter.plugins.triton import archive_keys
from shunter.plugins.triton.pools import Pools

HEADERS = (*KEYS, STRICT_KEY)


@pytest.mark.parametrize(
    ("word", "known", "expected"),
    [
        ("max-wait", ("max_wait_ms", "caps"), "max_wait_ms"),
        ("THRESHOLD_CAP", ("threshold_cap",), "threshold_cap"),
        ("x-shunter-clas", HEADERS, "x-shunter-class"),
        ("x-shunter-deadline", HEADERS, "x-shunter-deadline-ms"),
        ("resnt50", ("minilm", "resnet50"), "resnet50"),
        ("colour", ("alpha", "caps"), None),
        ("", ("alpha",), None),
        ("alpha", (), None),
        ("alpha", ("alpha",), None),
    ],
)
def test_the_nearest_name_is_told_if_one_is_near(word, known, expected):
    assert hint(word, known) == (f"; did you mean {expected}?" if expected else "")


def settings(text):
    def use(folder):
        path = folder / "shunter.toml"
        path.write_text(text, encoding="utf-8")
        load(path)

    return use


def keys(text):
    def use(folder):
        path = folder / "keys.toml"
        path.write_text(text, encoding="utf-8")
        path.chmod(0o600)
        read_keys(path)

    return use


def section(**said):
    return lambda folder: archive_keys.check(SimpleNamespace(section=said))


def store(file):
    def use(folder):
        (folder / "resnet50.mar").touch()
        serve.archives(folder, [f"m={file}"])

    return use


def profile(file):
    def use(folder):
        (folder / "resnet50.mar").touch()
        files.profile_file(folder / file)

    return use


def command(*words):
    return lambda folder: cli.app(args=list(words), standalone_mode=False)


@pytest.mark.parametrize(
    ("use", "kind", "meant"),
    [
        (settings("[batchin]"), SettingsError, "batching"),
        (settings("[batching]\nmax_wait = 2"), SettingsError, "max_wait_ms"),
        (settings("[models.m]\nthreshhold_cap = 2"), SettingsError, "threshold_cap"),
        (settings("[pool]\nmodels = 'share'"), SettingsError, "shared"),
        (settings("[classes]\nallow_strct = 'all'"), SettingsError, "allow_strict"),
        (lambda _: parse_terms([("x-shunter-clas", "strict")]), ValueError, "x-shunter-class"),
        (lambda _: parse_terms([("x-shunter-class", "strickt")]), ValueError, "strict"),
        (
            lambda _: tensor_config({"tensors": {"inputs": [], "outputs": [], "bached": True}}),
            TensorConfigError,
            "batched",
        ),
        (keys("[[key]]\nid = 'a'\nmodel = ['m']"), KeyFileError, "models"),
        (section(slo=5), UserError, "slo_ms"),
        (section(weights="share"), UserError, "shared"),
        (section(**{"class": "best-efort"}), UserError, "best-effort"),
        (lambda _: Pools().has({"pool": "share"}), UserError, "shared"),
        (store("resnet.mar"), UserError, "resnet50.mar"),
        (profile("resnet5.mar"), UserError, "resnet50.mar"),
        (command("pack", "digts"), UserError, "digits"),
        (command("devices", "--simulate", "a100-40g"), UserError, "a100-40gb"),
        (command("adopt", "control", "m", "--class", "strickt"), UserError, "strict"),
    ],
)
def test_a_mistake_is_answered_with_what_may_have_been_meant(use, kind, meant, tmp_path):
    with pytest.raises(kind) as refused:
        use(tmp_path)
    assert f"did you mean {meant}?" in str(refused.value)


def test_both_servers_know_the_same_keys_of_a_section():
    folder = Path(archive_keys.__file__).parents[1] / "torchserve/java/org/shunter/torchserve"
    text = (folder / "settings/ModelSettings.java").read_text(encoding="utf-8")
    listed = re.search(r"KEYS =.*?List\.of\((.*?)\)\);", text, re.DOTALL)[1]
    assert set(re.findall(r'"(\w+)"', listed)) == set(archive_keys.SECTION)
