"""``shunter nic``: where its settings come from, and what it says of mistakes."""

import resource
import socket
from pathlib import Path

import pytest

from shunter.batching.page.runtime import RuntimeFolder
from shunter.nic_frontend import build, library
from shunter.nic_frontend.server import listeners
from shunter.plugins.cli import main as cli
from shunter.plugins.cli import nic as cli_nic
from shunter.plugins.cli.nic import _placed, _settings
from shunter.plugins.control.settings import NicSettings
from shunter.plugins.errors import UserError

FOLDER = RuntimeFolder(Path("/run/shunter-0-1"), 1)
NOTHING = {"host": None, "port": None, "tcp": None}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Works in a folder with no settings, and with no server."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SHUNTER_CONFIG", raising=False)
    monkeypatch.setenv("SHUNTER_RUNTIME_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def refusal(capsys):
    """What the command says of a mistake."""

    def refusal(*options):
        with pytest.raises(SystemExit) as ended:
            cli.main(["nic", *map(str, options)])
        assert ended.value.code == 2
        return capsys.readouterr().err

    return refusal


@pytest.mark.parametrize(
    ("text", "given", "expected"),
    [
        ("", NOTHING, NicSettings()),
        ("[nic]\nport = 9000\ntcp = false", NOTHING, NicSettings(port=9000, tcp=False)),
        ("[nic]\nport = 9000", {"port": 1, "host": "::1"}, NicSettings(host="::1", port=1)),
        ("[nic]\ntcp = false", {"tcp": True}, NicSettings()),
    ],
)
def test_options_go_before_the_file(folder, text, given, expected):
    (folder / "shunter.toml").write_text(text)
    assert _settings(None, given) == expected


def test_the_file_may_be_another(folder, monkeypatch):
    (folder / "other.toml").write_text("[nic]\nport = 7")
    assert _settings(Path("other.toml"), NOTHING).port == 7
    monkeypatch.setenv("SHUNTER_CONFIG", "other.toml")
    assert _settings(None, NOTHING).port == 7


def test_settings_become_those_of_the_front_end(folder):
    (folder / "key").write_bytes(bytes(32))
    (folder / "key").chmod(0o600)
    more = "key", True, 5, 2, "keys.toml", "none", "eth0", "mlx5_0", 2
    table = NicSettings(True, "::1", 9, False, "/run/u", *more)
    placed = _placed(table, FOLDER)
    assert placed.attach == FOLDER.path / "nic.sock"
    assert (placed.host, placed.port, placed.tcp) == ("::1", 9, False)
    assert (placed.unix, placed.key) == (Path("/run/u"), bytes(32))
    assert placed.encrypt
    assert (placed.keys_file, placed.strict) == (Path("keys.toml"), "none")
    assert (placed.spin_us, placed.queue_bytes) == (5, 2 << 20)
    assert (placed.xdp, placed.verbs, placed.threads) == ("eth0", "mlx5_0", 2)
    unset = _placed(NicSettings(), FOLDER)
    assert (unset.xdp, unset.verbs, unset.threads) == ("", "", 1)


@pytest.mark.parametrize(
    ("mode", "size", "message"),
    [
        (0o640, 32, "others can read the key; chmod 600 it"),
        (0o600, 31, "has 31 bytes; a key has at least 32"),
        (None, 0, "cannot be read: No such file or directory"),
    ],
)
def test_a_key_that_is_none_is_one_sentence(folder, mode, size, message):
    if mode is not None:
        (folder / "key").write_bytes(bytes(size))
        (folder / "key").chmod(mode)
    with pytest.raises(UserError, match=message):
        _placed(NicSettings(key_file="key"), FOLDER)


def test_encryption_needs_a_key(refusal):
    assert "encrypt needs a key_file" in refusal("--encrypt")


def test_without_a_server_it_says_so(refusal):
    assert "no running server with Shunter" in refusal()


def test_a_bad_file_is_one_sentence(folder, refusal):
    (folder / "shunter.toml").write_text("[nic]\nport = -1")
    assert "nic.port = -1 is not allowed" in refusal()


def test_without_the_c_library_it_says_how_to_get_it_and_ends(folder, refusal, monkeypatch):
    def unbuildable():
        raise build.BuildError("no C compiler was found")

    monkeypatch.setattr(build, "ensure", unbuildable)
    monkeypatch.setenv(library.VARIABLE, str(folder / "libshunter.so"))
    said = refusal()
    assert f"there is no {folder}/libshunter.so; {library.ADVICE}" in said
    for way in ("`make library`", "C compiler", "wheel", "no C compiler was found"):
        assert way in said


def test_a_taken_port_is_one_sentence(folder, refusal, monkeypatch):
    monkeypatch.setattr(cli_nic, "only_live", lambda _: RuntimeFolder(folder, 1))
    monkeypatch.setattr(listeners, "PORT_WAIT_S", 0.1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        said = refusal("--port", port)
    assert f"cannot serve at UDP 127.0.0.1 port {port}: Address already in use" in said
    assert "is another one running?" in said


def test_it_takes_the_descriptors_that_it_may_have():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1] - 1, before[1]))
    try:
        cli_nic._take_descriptors()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
