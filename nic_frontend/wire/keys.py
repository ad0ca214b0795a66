"""Keys of a session, and the codes that say who said its hellos. Pure.

All come from the pre-shared secret by HKDF-SHA256 (RFC 5869). The keys of a session are salted with
both nonces and bound to all of what both hellos say, so a client and a server whose words were
changed on the way do not understand each other. Where payloads are encrypted an X25519 secret of
this session alone goes in as well: who gets hold of the pre-shared secret later reads nothing.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass

from shunter.nic_frontend.wire.layout import (
    HEADER_BYTES,
    HELLO_FIELDS,
    LABELS,
    MAC_BYTES,
)

KEY = 16
_NONCE = HELLO_FIELDS["nonce"][0] + HEADER_BYTES
_COOKIE = HELLO_FIELDS["cookie"][0] + HEADER_BYTES
_SEGMENT = HELLO_FIELDS["segment"][0] + HEADER_BYTES


@dataclass(frozen=True)
class SharedKey:
    """A key that both sides have before, as the client sees it."""

    id: str
    secret: bytes


@dataclass(frozen=True)
class Keys:
    """One for each direction and purpose: nothing that is sent back is taken for the other's, and
    no nonce is used twice with a key."""

    tag_to_server: bytes
    tag_to_client: bytes
    payload_to_server: bytes
    payload_to_client: bytes
    hello_ack: bytes


def hello_mac(secret: bytes, message: bytes) -> bytes:
    """MAC of a HELLO, of which ``message`` is the header and the payload before the MAC."""
    said = hashlib.sha256(message).digest()
    return _expanded(_extracted(secret, message[_NONCE:_COOKIE]), "HELLO", said, MAC_BYTES)


def session_keys(secret: bytes, shared: bytes, hello: bytes, opened: bytes) -> Keys:
    """Keys of the session that a HELLO_ACK opens.

    ``shared``: what X25519 gives, empty without encryption. ``hello``: the message before its MAC.
    ``opened``: the payload of HELLO_ACK before its MAC.
    """
    # There may be several cookies, and the answer to any of these hellos is good.
    without = hello[:_COOKIE] + bytes(_SEGMENT - _COOKIE) + hello[_SEGMENT:]
    said = hashlib.sha256(without + opened).digest()
    extracted = _extracted(secret + shared, opened[: 2 * (_COOKIE - _NONCE)])
    names = "TAG_TO_SERVER", "TAG_TO_CLIENT", "PAYLOAD_TO_SERVER", "PAYLOAD_TO_CLIENT"
    keys = (_expanded(extracted, name, said, KEY) for name in names)
    return Keys(*keys, _expanded(extracted, "HELLO_ACK", said, MAC_BYTES))


def hello_ack_mac(keys: Keys, header: bytes) -> bytes:
    """MAC of a HELLO_ACK: its key stands for all but the header, which names session and grant."""
    return hmac.digest(keys.hello_ack, header, hashlib.sha256)


def is_same(one: bytes, other: bytes) -> bool:
    """Compare two MACs in a time that says nothing of them."""
    return hmac.compare_digest(one, other)


def _extracted(secret: bytes, salt: bytes) -> bytes:
    return hmac.digest(salt, secret, hashlib.sha256)


def _expanded(extracted: bytes, label: str, said: bytes, length: int) -> bytes:
    return hmac.digest(extracted, LABELS[label] + said + b"\x01", hashlib.sha256)[:length]
