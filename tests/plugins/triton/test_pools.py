"""Which models share processes behind Triton."""

import os

import pytest

from shunter.plugins.host import HostError
from shunter.plugins.triton.pools import Pools, pools_of
from shunter.plugins.triton.serving.control import may_forbid_claims

ALL = Pools(all=True, workers=2)


@pytest.fixture(autouse=True)
def nothing_is_said(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name in ("SHUNTER_CONFIG", "SHUNTER_POOL_WORKERS", "SHUNTER_POOL_HOT_MB"):
        monkeypatch.delenv(name, raising=False)


def test_settings_are_a_file_or_the_environment(monkeypatch, tmp_path):
    assert pools_of(None) == Pools()
    monkeypatch.setenv("SHUNTER_POOL_WORKERS", "3")
    monkeypatch.setenv("SHUNTER_POOL_HOT_MB", "many")
    assert pools_of(None) == Pools(workers=3)
    settings = tmp_path / "s.toml"
    settings.write_text('[pool]\nmodels = "shared"\nworkers = 2\nhot_mb = 500\nthreads = 1\n')
    assert pools_of(str(settings)) == Pools(True, 2, 500, 1)
    settings.write_text('[pool]\nworkers = 2\ncores = "0-3"\n')
    assert pools_of(str(settings)) == Pools(workers=2, cores="0-3")
    assert pools_of(str(settings)).variables(1)["SHUNTER_POOL_CORES"] == "0-3"
    settings.write_text("[pool]\nworkers = 0\n")
    assert pools_of(str(settings)) == Pools(workers=3), "what is wrong the controller says"
    os.mkfifo(tmp_path / "pipe")
    assert pools_of(str(tmp_path / "pipe")) == Pools(workers=3), "nobody waits for a writer"
    assert may_forbid_claims(str(tmp_path / "pipe"))


@pytest.mark.parametrize(
    ("section", "pools", "expected"),
    [
        ({}, Pools(), False),
        ({}, ALL, True),
        ({"pool": "dedicated"}, ALL, False),
        ({"pool": "shared"}, Pools(), True),
        ({"cores": "0"}, ALL, False),
        ({"pool": "shared", "preemptible": False}, Pools(), True),
    ],
)
def test_who_shares(section, pools, expected):
    assert pools.has(section) is expected


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"pool": "some"}, "'some' of the archive; allowed: shared, dedicated"),
        ({"pool": "shared", "device": "0"}, "not possible together with device"),
    ],
)
def test_what_cannot_be_is_refused(section, words):
    with pytest.raises(HostError, match=words):
        ALL.has(section)


def test_workers_are_spread():
    assert [ALL.variables(n)["SHUNTER_POOL"] for n in range(4)] == ["0", "1", "0", "1"]
