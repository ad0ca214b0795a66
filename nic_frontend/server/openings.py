"""What is asked of a hello before it opens a session, and the session that it opens."""

from __future__ import annotations

import errno
import logging
import os
import secrets
import time
from dataclasses import dataclass, replace
from typing import NamedTuple

from shunter.batching.queue.native import REGIONS
from shunter.batching.queue.regions import MOST_REGIONS, may_have_more
from shunter.nic_frontend import x25519
from shunter.nic_frontend.server.access import AccessKey, KeyRing
from shunter.nic_frontend.server.functions import Function, Functions
from shunter.nic_frontend.server.loops import Loops
from shunter.nic_frontend.server.sessions import Opening, origin_of_user
from shunter.nic_frontend.wire.header import Header
from shunter.nic_frontend.wire.hello import (
    NO_MAC,
    NO_PUBLIC,
    Hello,
    Opened,
    agreed,
    hello_ack,
    pack_refusal,
    room,
)
from shunter.nic_frontend.wire.keys import (
    Keys,
    hello_ack_mac,
    hello_mac,
    is_same,
    session_keys,
)
from shunter.nic_frontend.wire.layout import (
    HEADER_BYTES,
    MAC_BYTES,
    WANT_SHARED_MEMORY,
    WINDOW,
    Flags,
    Rights,
    WireStatus,
)
from shunter.nic_frontend.wire.segments import shared_places

LOGGER = logging.getLogger("shunter.nic")
_TRUSTED = {origin_of_user(0), origin_of_user(os.getuid())}


@dataclass(frozen=True)
class Asked:
    """A hello whose key, if it needs one, is right."""

    hello: Hello
    message: bytes
    """All of it before its MAC."""
    header: Header
    key: AccessKey | None = None
    number: int = 0
    """Of the key."""


class Answer(NamedTuple):
    """To a hello."""

    message: bytes
    session: int = 0
    """That it opens; 0: none."""
    memory: int = -1
    """Descriptor that goes with the message, of what the client shares from now on; -1: none.
    It is the receiver's to close."""


class Refused(Exception):
    """There is no session; ``status`` and ``reason`` are for the client."""

    def __init__(self, status: WireStatus, reason: str = "") -> None:
        """``reason``: for people, may be empty."""
        super().__init__(reason)
        self.status, self.reason = status, reason


class Openings:
    """Answers hellos that are to open sessions."""

    def __init__(
        self, path: Loops, functions: Functions, keys: KeyRing, *, encrypt: bool, strict: str
    ) -> None:
        """``encrypt`` and ``strict`` as in the settings.

        Raises ValueError: it is to encrypt and cannot.
        """
        self._path, self._functions, self._keys = path, functions, keys
        self._encrypt, self._strict = encrypt, strict
        self._no_encryption = path.why_no_encryption() if keys else "there is no key"
        self._largest, self._can_look = path.datagrams()
        if encrypt and self._no_encryption:
            raise ValueError(f"payloads cannot be encrypted: {self._no_encryption}")
        self._told = ""

    def answer(
        self,
        header: Header,
        hello: Hello,
        message: bytes,
        peer: bytes,
        origin: int,
        *,
        stream: bool,
        here: bool = False,
    ) -> Answer:
        """The answer to a hello that may open a session.

        ``origin``: whose sessions are counted together. ``here``: it came by a Unix socket.
        """
        asked = Asked(hello, message[:-MAC_BYTES], header)
        try:
            asked = self._authenticated(asked, message[-MAC_BYTES:])
            function, protect = self._function(hello), self._protection(hello)
            most = hello.segment if stream else min(hello.segment, self._largest - HEADER_BYTES)
            session = Opening(
                id=0,
                func_id=function.id,
                peer=peer,
                segment=room(most, protect),
                window=min(hello.window, WINDOW, function.queue.entries),
                stream=stream,
                protect=protect,
                origin=origin,
                may_be_strict=self._may_be_strict(asked.key),
                key=asked.number,
            )
            if here and hello.want & WANT_SHARED_MEMORY and not protect:
                return self._open_with_memory(asked, function, session)
            return self._open(asked, function, session)
        except Refused as refused:
            payload = pack_refusal(hello.nonce, refused.reason)
            return Answer(hello_ack(refused.status, len(payload), header.req_id) + payload)

    def _authenticated(self, asked: Asked, mac: bytes) -> Asked:
        """With its key; nothing is kept of who has none. Raises Refused."""
        hello = asked.hello
        if not self._keys:
            if hello.want & Flags.PAYLOAD_AEAD:
                raise Refused(WireStatus.CANNOT_ENCRYPT, "the server has no keys")
            if hello.key_id or mac != NO_MAC:
                raise Refused(WireStatus.UNAUTHORIZED, "the server has no keys")
            return asked
        found = self._keys.find(hello.key_id, time.time())
        if found is None or not is_same(hello_mac(found[1].secret, asked.message), mac):
            raise Refused(WireStatus.UNAUTHORIZED)
        number, key = found
        if not key.allows(hello.model):
            raise Refused(WireStatus.FORBIDDEN, "this model")
        return replace(asked, key=key, number=number)

    def _function(self, hello: Hello) -> Function:
        """What is asked for. Raises Refused when there is none, or it has no worker now."""
        function = self._functions.find(hello.model, hello.version)
        if function is not None:
            return function
        reason = self._functions.why_none(hello.model, hello.version)
        if reason is None:
            raise Refused(WireStatus.UNKNOWN_FUNCTION)
        raise Refused(WireStatus.NO_WORKER, reason)

    def _protection(self, hello: Hello) -> int:
        protect = agreed(hello.protect, can=not self._no_encryption, must=self._encrypt)
        if protect == WireStatus.CANNOT_ENCRYPT:
            LOGGER.info(
                "no session for %s: the client wants encryption, and %s",
                *(hello.model, self._no_encryption),
            )
        if isinstance(protect, WireStatus):
            raise Refused(protect)
        if protect and not self._can_look:
            raise Refused(WireStatus.CANNOT_ENCRYPT, "payloads land on a device, which checks none")
        return protect

    def _open_with_memory(self, asked: Asked, function: Function, session: Opening) -> Answer:
        """Its requests lie in memory that is made for it, if there can be any."""
        made, sizes = None, [spec.bytes for spec in function.attach.carried_inputs]
        if self._may_share(function, session.origin):
            free_bytes = self._functions.free_bytes()
            made = function.regions.make(shared_places(sizes)[1], session.window, free_bytes)
        if made is None:
            return self._open(asked, function, session)
        region, memory = made
        session.window, session.region = region.window, region.number
        session.region_bytes = region.bytes
        region.owner = session.origin
        try:
            answer = self._open(asked, function, session)
        except BaseException:
            function.regions.discard(region)
            os.close(memory)
            raise
        function.regions.share(region, session.id, function.workers.values())
        return answer._replace(memory=memory)

    def _may_share(self, function: Function, user: int) -> bool:
        """Whether there is a place for a region, and other users keep some.

        Whose the front end is could as well end it: he may have all of them.
        """
        packing = function.attach.packing
        if packing is not None and packing.streamed:
            return False  # what is under way has been answered: its place would be used again
        everywhere = [each.regions for each in self._functions.all()]
        for most, found in ((REGIONS - 1, [function.regions]), (MOST_REGIONS, everywhere)):
            taken = sum(map(len, found))
            theirs = 0 if user in _TRUSTED else sum(each.owned(user) for each in found)
            if not may_have_more(theirs, taken, most):
                return False
        return True

    def _open(self, asked: Asked, function: Function, session: Opening) -> Answer:
        hello, attach = asked.hello, function.attach
        private = x25519.private_key() if session.protect & Flags.PAYLOAD_AEAD else b""
        opened = Opened(
            client_nonce=hello.nonce,
            server_nonce=secrets.token_bytes(16),
            segment=session.segment,
            window=session.window,
            inputs=attach.inputs,
            outputs=attach.outputs,
            protect=session.protect,
            rights=(Rights.STRICT if session.may_be_strict else 0)
            | (Rights.SHARED_MEMORY if session.region else 0),
            public=x25519.public_key(private) if private else NO_PUBLIC,
            packing=attach.packing,
            rows=function.most_rows,
        ).pack()
        keys = session.keys = _keys(asked, private, opened)
        grant = self._add(session, hello.model)
        head = hello_ack(
            WireStatus.OK,
            len(opened) + MAC_BYTES,
            *(asked.header.req_id, session.id, session.func_id, grant),
        )
        mac = hello_ack_mac(keys, head) if keys else NO_MAC
        return Answer(head + opened + mac, session.id)

    def _may_be_strict(self, key: AccessKey | None) -> bool:
        if key is None:
            return self._strict == "all"
        return key.strict and self._strict != "none"

    def _add(self, session: Opening, model: str) -> int:
        """Add a session under a new id; its first grant. Raises Refused when it cannot be."""
        while True:
            session.id = self._path.new_session_id(session.func_id)
            try:
                grant = self._path.add_session(session, time.monotonic_ns())
            except FileExistsError:  # its place is taken
                continue
            except OSError as error:
                if error.errno == errno.E2BIG:
                    raise Refused(WireStatus.TOO_LARGE) from error
                self._tell(f"no session for {model}: {error}")
                raise Refused(WireStatus.RETRY_LATER) from error
            self._told = ""
            return grant

    def _tell(self, text: str) -> None:
        """Once, however often it is so."""
        if text != self._told:
            LOGGER.warning("%s", text)
            self._told = text


def _keys(asked: Asked, private: bytes, opened: bytes) -> Keys | None:
    """Of the session that a hello opens. Raises Refused for a public key that is none."""
    if asked.key is None:
        return None
    try:
        shared = x25519.shared_secret(private, asked.hello.public) if private else b""
    except ValueError as error:
        raise Refused(WireStatus.BAD_REQUEST, str(error)) from error
    return session_keys(asked.key.secret, shared, asked.message, opened)
