"""Keys of a session. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PayloadKeys:
    """Keys of AES-128-GCM, one for each direction, so that no nonce is used twice with a key."""

    to_server: bytes
    to_client: bytes
