"""How a client opens a session: hello, cookie, hello again."""

from __future__ import annotations

from dataclasses import dataclass, replace

from shunter.batching.queue.packed_form import PackedForm
from shunter.batching.queue.tensor_spec import TensorSpec
from shunter.nic_frontend import x25519
from shunter.nic_frontend.client.requests.calls import Tensors
from shunter.nic_frontend.client.requests.errors import (
    AuthenticationError,
    BadRequestError,
    no_worker,
    refusal,
)
from shunter.nic_frontend.client.requests.packed import PackedTensors
from shunter.nic_frontend.wire.header import Header, WrongHeader, parse
from shunter.nic_frontend.wire.hello import (
    LONGEST,
    NO_MAC,
    Hello,
    HelloError,
    Opened,
    parse_cookie,
    parse_refusal,
)
from shunter.nic_frontend.wire.keys import (
    Keys,
    SharedKey,
    hello_ack_mac,
    is_same,
    session_keys,
)
from shunter.nic_frontend.wire.layout import (
    HEADER_BYTES,
    MAC_BYTES,
    Flags,
    MessageType,
    Rights,
    WireStatus,
)
from shunter.nic_frontend.wire.segments import SegmentPlan, TooLarge

FIRST_WAIT_NS = 50_000_000
MOST_WAIT_NS = 1_000_000_000
_NEVER = 1 << 63


@dataclass(frozen=True)
class OpenSession:
    """What HELLO_ACK said."""

    session: int
    func_id: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    segment: int
    grant: int
    keys: Keys | None
    protect: int
    """PAYLOAD_CRC or PAYLOAD_AEAD: what all payloads carry."""
    trip_ns: int
    """The shortest way to the server and back."""
    may_be_strict: bool = True
    """Without this right all requests are best effort."""
    shared: int = 0
    """Requests for whose inputs there is room in the memory that comes with it; 0: none does."""
    packing: PackedForm | None = None
    """Where requests and answers are runs of bytes."""
    rows: int = 1
    """Most of a request there."""

    @property
    def carried_inputs(self) -> tuple[TensorSpec, ...]:
        """What goes over the network."""
        return self.packing.carried_inputs() if self.packing else self.inputs

    @property
    def carried_outputs(self) -> tuple[TensorSpec, ...]:
        """What comes back."""
        return self.packing.carried_outputs() if self.packing else self.outputs


def tensors_of(opened: OpenSession) -> Tensors:
    """Those of its requests."""
    if opened.packing is None:
        return Tensors(opened.inputs, opened.outputs)
    return PackedTensors(opened.inputs, opened.outputs, opened.packing, opened.rows)


def check_names(model: str, version: str, key_id: str = "") -> None:
    """Raises BadRequestError for names that are too long for a hello."""
    for kind, name in {"model": model, "version": version, "key_id": key_id}.items():
        if len(name.encode()) > LONGEST[kind]:
            raise BadRequestError(f"{name!r} has more than {LONGEST[kind]} bytes")


class Opening:
    """One try to open a session, which may take several hellos."""

    def __init__(self, hello: Hello, key: SharedKey | None, *, stream: bool) -> None:
        """``hello`` is the first; its nonce must be new. Raises BadRequestError for long names."""
        hello = replace(hello, key_id=key.id) if key else hello
        check_names(hello.model, hello.version, hello.key_id)
        self._private = b""
        if hello.want & Flags.PAYLOAD_AEAD:
            self._private = x25519.private_key()
            hello = replace(hello, public=x25519.public_key(self._private))
        self._hello, self._secret, self._stream = hello, key and key.secret, stream
        self._due_ns, self._wait_ns = 0, FIRST_WAIT_NS
        self._said_ns = 0
        """When this hello was sent first."""

    def next(self, now_ns: int) -> bytes | None:
        """The hello, if it is time to send it."""
        if now_ns < self._due_ns:
            return None
        self._said_ns = self._said_ns or now_ns
        self._due_ns = _NEVER if self._stream else now_ns + self._wait_ns
        self._wait_ns = min(self._wait_ns + self._wait_ns // 4, MOST_WAIT_NS)
        return self._hello.message(self._secret)

    def receive(self, datagram: bytes, now_ns: int) -> OpenSession | None:
        """The session when this opens one; what is no answer to the hello means nothing.

        Raises an InferenceError when the server refuses, or has another key.
        """
        try:
            header = parse(datagram)
            if header.type != MessageType.HELLO_ACK:
                return None
            payload = datagram[HEADER_BYTES:]
            if header.session == 0:
                self._not_yet(header, payload, now_ns)
                return None
            found = Opened.parse(payload[:-MAC_BYTES], self._hello.nonce)
            return self._opened(header, found, self._keys(datagram, found), now_ns)
        except (WrongHeader, HelloError):
            return None

    def _not_yet(self, header: Header, payload: bytes, now_ns: int) -> None:
        nonce = self._hello.nonce
        if header.status == WireStatus.COOKIE:
            self._hello = replace(self._hello, cookie=parse_cookie(payload, nonce))
            self._due_ns, self._wait_ns, self._said_ns = now_ns, FIRST_WAIT_NS, 0
            return
        reason = parse_refusal(payload, nonce)
        if header.status == WireStatus.NO_WORKER:
            raise no_worker(self._hello.model, reason)
        if header.status != WireStatus.RETRY_LATER:
            raise refusal(header.status, reason)

    def _keys(self, datagram: bytes, found: Opened) -> Keys | None:
        """The keys of the session, if it has any. Raises AuthenticationError."""
        message, mac = datagram[:-MAC_BYTES], datagram[-MAC_BYTES:]
        if self._secret is None:
            if mac != NO_MAC:
                raise AuthenticationError("the server wants a key, and there is none")
            return None
        shared = b""
        if self._private:
            try:
                shared = x25519.shared_secret(self._private, found.public)
            except ValueError as error:
                raise HelloError(str(error)) from error
        hello = self._hello.message(None)[:-MAC_BYTES]
        keys = session_keys(self._secret, shared, hello, message[HEADER_BYTES:])
        if not is_same(hello_ack_mac(keys, message[:HEADER_BYTES]), mac):
            raise AuthenticationError("the server has another key")
        return keys

    def _opened(
        self, header: Header, found: Opened, keys: Keys | None, now_ns: int
    ) -> OpenSession:
        if found.protect != self._hello.protect:
            raise AuthenticationError("the server does not protect payloads as it was asked to")
        opened = OpenSession(
            header.session,
            header.func_id,
            found.inputs,
            found.outputs,
            found.segment,
            header.credit,
            keys,
            found.protect,
            max(1, now_ns - self._said_ns),
            bool(found.rights & Rights.STRICT),
            found.window if found.rights & Rights.SHARED_MEMORY else 0,
            found.packing,
            found.rows,
        )
        try:
            for specs in (opened.carried_inputs, opened.carried_outputs):
                SegmentPlan(tuple(spec.bytes for spec in specs), found.segment)
        except TooLarge as error:
            raise BadRequestError(str(error)) from error
        return opened
