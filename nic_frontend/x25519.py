"""X25519 (RFC 7748): a secret that two sides share after each has seen the other's public key.

By the C library, which finds the system's libcrypto, or else by the package ``cryptography``.
"""

from __future__ import annotations

import ctypes
import secrets
from functools import cache

from shunter.nic_frontend.library import library

BYTES = 32


def private_key() -> bytes:
    """A new one."""
    return secrets.token_bytes(BYTES)


def public_key(private: bytes) -> bytes:
    """What the other side is told."""
    if (found := _native()) is not None:
        return _called(found.shunter_x25519_public, private)
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def shared_secret(private: bytes, public: bytes) -> bytes:
    """Of my private and the other's public key. Raises ValueError when it is no secret."""
    if (found := _native()) is not None:
        return _called(found.shunter_x25519_shared, private, public)
    from cryptography.hazmat.primitives.asymmetric.x25519 import (
        X25519PrivateKey,
        X25519PublicKey,
    )

    other = X25519PublicKey.from_public_bytes(public)
    return X25519PrivateKey.from_private_bytes(private).exchange(other)


@cache
def _native() -> ctypes.CDLL | None:
    found = library()
    if found is None:
        return None
    found.shunter_x25519_is_there.restype = ctypes.c_bool
    for name, count in (("public", 2), ("shared", 3)):
        function = getattr(found, f"shunter_x25519_{name}")
        function.restype, function.argtypes = ctypes.c_bool, [ctypes.c_char_p] * count
    return found if found.shunter_x25519_is_there() else None


def _called(function: ctypes._FuncPointer, *keys: bytes) -> bytes:
    into = ctypes.create_string_buffer(BYTES)
    if not function(*keys, into):
        raise ValueError("not a public key of X25519")
    return into.raw
