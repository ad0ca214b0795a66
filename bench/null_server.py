"""A server that answers every request at once: what is measured against it is the client.

Example:
    python bench/null_server.py --port 9000
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib

with contextlib.suppress(ImportError):
    import uvloop

_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n[]"


class _Session(asyncio.Protocol):
    """One connection. Requests are separated only as far as their lengths tell."""

    def __init__(self) -> None:
        self._part = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        data = self._part + data
        while (end := data.find(b"\r\n\r\n")) >= 0:
            head = data[:end].lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(data) < end + 4 + length:
                break
            self._transport.write(_ANSWER)
            data = data[end + 4 + length :]
        self._part = data


async def serve(host: str, port: int) -> None:
    """Serve until cancelled; prints the port on a line of its own."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(_Session, host, port, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="default: any free one; it is printed")
    args = parser.parse_args()
    factory = uvloop.new_event_loop if "uvloop" in globals() else None
    with contextlib.suppress(KeyboardInterrupt), asyncio.Runner(loop_factory=factory) as runner:
        runner.run(serve(args.host, args.port))


if __name__ == "__main__":
    main()
