"""Keys with ids and rights: the file, and what changes when it does."""

import base64

import pytest

from shunter.nic_frontend.server.access import AccessKey, KeyFileError, KeyRing, read_keys

A, B = b"a" * 32, b"b" * 40
TEXT = base64.b64encode(A).decode()
NOON = 1893499200.0
"""2030-01-01T12:00:00Z."""


@pytest.fixture
def write(tmp_path):
    """Write the file of keys; its path."""

    def file(text, mode=0o600):
        path = tmp_path / "keys.toml"
        other = tmp_path / "next"
        other.write_text(text)
        other.chmod(mode)
        other.rename(path)
        return path

    return file


def test_a_key_has_an_id_a_secret_and_rights(write, tmp_path):
    (tmp_path / "b.key").write_bytes(B)
    (tmp_path / "b.key").chmod(0o600)
    path = write(f"""
        [[key]]
        id = "a"
        secret = "{TEXT}"
        models = ["resnet*", "digits"]
        classes = ["best_effort"]
        not_after = 2030-01-01T12:00:00Z
        [[key]]
        id = "ü"
        secret_file = "b.key"
    """)
    assert read_keys(path) == [
        AccessKey("a", A, ("resnet*", "digits"), False, NOON),
        AccessKey("ü", B, ("*",), True, None),
    ]


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("", "id = None"),
        ('id = ""', "id = ''"),
        (f'id = "{"x" * 33}"', "1 to 32 bytes"),
        ('id = "a"', "secret or secret_file, one of them"),
        (f'id = "a"\nsecret = "{TEXT}"\nsecret_file = "b"', "one of them"),
        ('id = "a"\nsecret = "not base64!"', "not base64"),
        ('id = "a"\nsecret = "YWJj"', "3 bytes; a secret has at least 32"),
        ('id = "a"\nsecret_file = "nowhere"', "nowhere cannot be read"),
        (f'id = "a"\nsecret = "{TEXT}"\nmodels = "m"', "models = 'm'"),
        (f'id = "a"\nsecret = "{TEXT}"\nclasses = []', "allowed: strict, best_effort"),
        (f'id = "a"\nsecret = "{TEXT}"\nclasses = ["urgent"]', "allowed: strict, best_effort"),
        (f'id = "a"\nsecret = "{TEXT}"\nnot_after = 2030-01-01T12:00:00', "with its zone"),
        (f'id = "a"\nsecret = "{TEXT}"\nmodel = ["m"]', "model is unknown"),
        (f'id = "a"\nsecret = "{TEXT}"\n[[key]]\nid = "a"\nsecret = "{TEXT}"', "several keys 'a'"),
        ("[", "Invalid"),
    ],
)
def test_what_is_wrong_is_named(write, table, said):
    with pytest.raises(KeyFileError) as error:
        KeyRing(write(f"[[key]]\n{table}"))
    assert said in str(error.value)


def test_other_tables_are_refused(write):
    with pytest.raises(KeyFileError, match=r"allowed: \[\[key\]\]"):
        read_keys(write("[keys]\nid = 1"))


def test_others_must_not_be_able_to_read_it(write):
    with pytest.raises(KeyFileError, match="chmod 600"):
        read_keys(write("", 0o640))


def key(name, **more):
    rest = "".join(f"\n{field} = {value}" for field, value in more.items())
    return f'[[key]]\nid = "{name}"\nsecret = "{TEXT}"{rest}\n'


def test_without_keys_none_is_needed():
    ring = KeyRing(None)
    assert not ring and ring.find("default", 0) is None and ring.refresh(0) == []


def test_the_single_key_has_all_rights_and_stands_beside_the_others(write):
    ring = KeyRing(write(key("a")), B)
    number, found = ring.find("default", 0)
    assert ring and found == AccessKey("default", B) and found.allows("anything")
    assert ring.find("a", 0)[0] != number
    with pytest.raises(KeyFileError, match="several keys 'default'"):
        KeyRing(write(key("default")), B)


def test_what_is_taken_away_or_changed_is_told_and_the_rest_stays(write):
    ring = KeyRing(write(key("a") + key("b") + key("c")))
    numbers = {name: ring.find(name, 0)[0] for name in "abc"}
    assert ring.refresh(0) == []
    write(key("b") + key("c", classes='["best_effort"]') + key("d"))
    assert sorted(ring.refresh(0)) == sorted([numbers["a"], numbers["c"]])
    assert ring.find("a", 0) is None
    assert ring.find("b", 0)[0] == numbers["b"]
    assert ring.find("c", 0)[0] not in numbers.values()
    assert ring.refresh(0) == []


def test_a_file_that_cannot_be_used_changes_nothing(write, caplog):
    path = write(key("a"))
    ring = KeyRing(path)
    number, _ = ring.find("a", 0)
    write("rubbish")
    assert ring.refresh(0) == ring.refresh(0) == [] and ring.find("a", 0)[0] == number
    assert caplog.text.count("the keys stay as they were") == 1
    path.unlink()
    assert ring.refresh(0) == [] and ring.find("a", 0)[0] == number
    write(key("b"))
    assert ring.refresh(0) == [number]


def test_a_key_ends_in_time(write):
    ring = KeyRing(write(key("a", not_after="2030-01-01T12:00:00Z")))
    number, _ = ring.find("a", NOON)
    assert ring.refresh(NOON) == []
    assert ring.find("a", NOON + 1) is None
    assert ring.refresh(NOON + 1) == [number]
    assert ring.refresh(NOON + 2) == []  # that has been said


def test_it_is_read_again_when_it_is_told_to(write):
    path = write(f'[[key]]\nid = "a"\nsecret_file = "{write.__name__}"\n')
    secret = path.parent / write.__name__
    secret.write_bytes(A)
    secret.chmod(0o600)
    ring = KeyRing(path)
    number, _ = ring.find("a", 0)
    secret.write_bytes(B)
    assert ring.refresh(0) == []
    assert ring.refresh(0, force=True) == [number]
    assert ring.find("a", 0)[1].secret == B
