"""How a session begins: bytes, cookies, and the key."""

import dataclasses
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.batching.queue.tensor_spec import TensorSpec
from shunter.nic_frontend.wire.hello import (
    SMALLEST_SEGMENT,
    Hello,
    HelloError,
    Opened,
    pack_cookie,
    parse_cookie,
)
from shunter.nic_frontend.wire.keys import hello_mac, session_keys
from shunter.nic_frontend.wire.layout import LARGEST_SEGMENT, WANT_SHARED_MEMORY, Flags

NONCE, OTHER_NONCE = bytes(range(16)), bytes(range(16, 32))
COOKIE = bytes(range(200, 216))
INPUTS = (TensorSpec("a", "float32", (3, 4)), TensorSpec("ü", "uint8", ()))
OUTPUTS = (TensorSpec("b", "int64", (0,)),)
OPENED = Opened(NONCE, OTHER_NONCE, 1408, 64, INPUTS, OUTPUTS, public=bytes(range(32)))


@given(
    st.text(max_size=32).filter(lambda text: "\0" not in text),
    st.integers(SMALLEST_SEGMENT, LARGEST_SEGMENT),
    st.integers(1, 65535),
    st.binary(min_size=16, max_size=16),
    st.binary(min_size=32, max_size=32),
)
def test_a_hello_is_read_as_it_was_said(model, segment, window, cookie, public):
    hello = Hello(NONCE, model, "1.0", segment, window, cookie, 0, "kü", public)
    assert len(hello.pack()) == Hello.BYTES
    assert Hello.parse(hello.pack()) == hello


@given(st.binary(max_size=400))
def test_rubbish_is_no_hello_or_a_sound_one(payload):
    for data in (payload, payload.ljust(Hello.BYTES, b"\0")[: Hello.BYTES]):
        try:
            hello = Hello.parse(data)
        except HelloError:
            continue
        assert SMALLEST_SEGMENT <= hello.segment <= LARGEST_SEGMENT and hello.window >= 1


@pytest.mark.parametrize(
    "changes",
    [
        {"segment": SMALLEST_SEGMENT - 1},
        {"segment": LARGEST_SEGMENT + 1},
        {"segment": 0},
        {"window": 0},
    ],
    ids=str,
)
def test_numbers_that_make_no_session(changes):
    with pytest.raises(HelloError):
        Hello.parse(Hello(NONCE, "m", **changes).pack())


def test_names_that_are_no_text():
    data = bytearray(Hello(NONCE, "model").pack())
    data[data.index(b"model")] = 0xFF
    with pytest.raises(HelloError, match="UTF-8"):
        Hello.parse(bytes(data))


# ---- cookies


def test_a_cookie_answers_one_hello():
    payload = pack_cookie(NONCE, COOKIE)
    assert payload == NONCE + COOKIE
    assert parse_cookie(payload, NONCE) == COOKIE
    for wrong in (payload[:-1], payload + b"\0", b""):
        with pytest.raises(HelloError):
            parse_cookie(wrong, NONCE)
    with pytest.raises(HelloError, match="this hello"):
        parse_cookie(payload, OTHER_NONCE)


# ---- what the server says


def test_a_session_is_read_as_it_was_opened():
    assert Opened.parse(OPENED.pack(), NONCE) == OPENED
    with pytest.raises(HelloError, match="this hello"):
        Opened.parse(OPENED.pack(), OTHER_NONCE)


@given(st.data())
def test_a_description_that_is_damaged_is_an_error_or_another_description(data):
    payload = bytearray(OPENED.pack())
    at = data.draw(st.integers(0, len(payload) - 1))
    payload[at] = data.draw(st.integers(0, 255))
    payload = payload[: data.draw(st.sampled_from([len(payload), at]))]
    try:
        opened = Opened.parse(bytes(payload), NONCE)
    except HelloError:
        return
    assert opened.client_nonce == NONCE and 1 <= len(opened.inputs) <= 8


# ---- keys


SAID, ANSWER = Hello(NONCE, "m", key_id="k").message(None)[:-32], OPENED.pack()


def hkdf(secret, salt, label, said, length):
    """RFC 5869, of another library where there is one."""
    kdf = pytest.importorskip("cryptography.hazmat.primitives.kdf.hkdf")
    hashes = pytest.importorskip("cryptography.hazmat.primitives.hashes")
    info = label.encode() + hashlib.sha256(said).digest()
    return kdf.HKDF(hashes.SHA256(), length, salt, info).derive(secret)


@pytest.mark.parametrize("shared", [b"", b"x" * 32])
def test_keys_are_derived_as_the_page_says(shared):
    secret, said = b"s" * 40, SAID + ANSWER
    keys = session_keys(secret, shared, SAID, ANSWER)
    salt = NONCE + OTHER_NONCE
    derived = {
        field.name: hkdf(
            secret + shared, salt, "shunter x64 v2 " + field.name.replace("_", " "), said, length
        )
        for field, length in zip(dataclasses.fields(keys), (16, 16, 16, 16, 32), strict=True)
    }
    assert dataclasses.asdict(keys) == derived
    assert len(set(derived.values())) == 5
    assert hello_mac(secret, SAID) == hkdf(secret, NONCE, "shunter x64 v2 hello", SAID, 32)


def test_a_cookie_makes_another_mac_and_the_same_keys():
    """There may be several cookies; the server may answer any of these hellos."""
    other = Hello(NONCE, "m", key_id="k", cookie=COOKIE).message(None)[:-32]
    assert session_keys(b"s" * 32, b"", other, ANSWER) == session_keys(b"s" * 32, b"", SAID, ANSWER)
    assert hello_mac(b"s" * 32, other) != hello_mac(b"s" * 32, SAID)


@given(st.data())
def test_every_byte_of_both_hellos_makes_other_keys(data):
    hello, opened = bytearray(SAID), bytearray(ANSWER)
    changed = data.draw(st.sampled_from([hello, opened]))
    at = data.draw(st.integers(0, len(changed) - 1).filter(lambda at: not 80 <= at < 96))
    changed[at] ^= 1 << data.draw(st.integers(0, 7))
    found = session_keys(b"s" * 32, b"", bytes(hello), bytes(opened))
    right = session_keys(b"s" * 32, b"", SAID, ANSWER)
    for name, key in dataclasses.asdict(right).items():
        assert getattr(found, name) != key
    if changed is hello:
        assert hello_mac(b"s" * 32, bytes(hello)) != hello_mac(b"s" * 32, SAID)


def test_a_hello_without_a_key_has_no_mac():
    assert Hello(NONCE, "m").message(None)[-32:] == bytes(32)
    assert Hello(NONCE, "m").message(b"s" * 32)[-32:] != bytes(32)


@pytest.mark.parametrize("protect", [0, Flags.PAYLOAD_CRC, Flags.PAYLOAD_AEAD])
def test_a_hello_may_want_shared_memory_beside_its_protection(protect):
    plain, sharing = (
        Hello.parse(Hello(NONCE, "m", want=protect | more).pack())
        for more in (0, WANT_SHARED_MEMORY)
    )
    assert plain.protect == sharing.protect == protect
    assert sharing.want & WANT_SHARED_MEMORY and not plain.want & WANT_SHARED_MEMORY
    with pytest.raises(HelloError):
        Hello.parse(Hello(NONCE, "m", want=WANT_SHARED_MEMORY >> 1).pack())
