"""Front ends and workers as processes: forked from one that has imported everything.

Run as a script. Each line of its input is ``[role, options]``; each line of its output the number
of the process that plays it.
"""

import contextlib
import json
import os
import signal
import socket
import sys
import time
import traceback
from pathlib import Path

import numpy as np

from shunter.batching.page.runtime import only_live
from shunter.batching.queue.attach import NAME, Attach
from shunter.batching.queue.tensor_spec import TensorSpec
from shunter.handlers.queue import front_end_link
from shunter.nic_frontend.server import front_end as front_ends
from shunter.nic_frontend.server import listeners
from shunter.nic_frontend.server.front_end import FrontEnd, Settings
from shunter.nic_frontend.server.server_link import ServerLink

FAILING = 0xBAD
RETRY_S = 0.02
"""Workers look more often for a next front end than they would otherwise."""


def answer_of(request, size):
    """What the model says to a request: both are bytes, and every one of the request counts."""
    rows = max(1, -(-request.size // max(1, size)))
    return 255 - np.resize(request, (rows, size)).sum(axis=0, dtype=np.uint8)


def front_end(
    folder,
    key=None,
    unix=None,
    port_wait_s=listeners.PORT_WAIT_S,
    run_s=front_ends.RUN_S,
    server=False,
    steers=True,
    **settings,
):
    """Serve; say what there is to whoever connects to ``control``.

    ``server``: the folder is that of a server, with its page. ``steers``: the kernel can.
    """
    folder = Path(folder)
    if not steers:
        listeners._can_steer = lambda loops: False
    listeners.PORT_WAIT_S, front_ends.RUN_S = port_wait_s, run_s
    try:
        front = FrontEnd(
            Settings(
                attach=folder / NAME,
                unix=unix and Path(unix),
                key=key and bytes.fromhex(key),
                **settings,
            )
        )
    except OSError as error:
        (folder / "refusal").write_text(str(error))
        (folder / "refusal").rename(folder / "refused")
        return
    attached = _attached(front)
    control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    control.bind(str(folder / f"control-{os.getpid()}"))
    control.listen()
    front._ready.watch(control.fileno(), lambda: _answer(front, control, attached))
    signal.signal(signal.SIGTERM, lambda *_: front.stop(finish=not front.is_stopping))
    link = ServerLink(front, only_live(folder), only_this=True) if server else None
    front.run(*([link.cycle] if link else []))
    if link:
        link.close()
    front.close()


def _attached(front):
    """Numbers of the processes whose workers have been attached; it grows."""
    pids, attach = [], front.functions._attach

    def noting(connection, said):
        attach(connection, said)
        pids.append(said.pid)

    front.functions._attach = noting
    return pids


def _answer(front, control, attached):
    connection, _ = control.accept()
    functions = {
        served.attach.model: {
            "id": served.id,
            "entries": served.queue.entries,
            "free": front.path.free_entries(served.id),
            "waiting": front.path.waiting(served.id),
            "workers": sorted(served.workers),
        }
        for served in front.functions.all()
    }
    content = {
        "port": front.port,
        "stats": front.path.stats(),
        "sessions": front.path.sessions(),
        "functions": functions,
        "attached": attached,
        "memories": _memories(),
        "rss_kb": int(Path("/proc/self/statm").read_text().split()[1]) * 4,
    }
    connection.send(json.dumps(content).encode())
    connection.close()


def _memories():
    """Descriptors of memory that are open, and mappings of such."""
    open_ones = 0
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            open_ones += "memfd:shunter" in os.readlink(each)
    mapped = Path("/proc/self/maps").read_text().count("memfd:shunter")
    return [open_ones, mapped]


def worker(
    folder, server, inputs, outputs, batch, model="m", version="1", timeout_s=120, **place
):
    """Work until the connection to ``server`` ends. What runs is written into ``ran`` first."""
    folder = Path(folder)
    specs = [tuple(TensorSpec(*each) for each in kind) for kind in (inputs, outputs)]
    attach = Attach(model, version, *specs, batch, os.getpid(), timeout_s, **place)
    front_end_link.RETRY_S = RETRY_S
    ran = os.open(folder / "ran", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def infer(inputs, outputs):
        requests = inputs[0].numpy().reshape(len(inputs[0]), -1).view(np.uint8)
        names = [int(request[:4].view("<u4")[0]) for request in requests]
        os.write(ran, (json.dumps([os.getpid(), names]) + "\n").encode())
        if (folder / "spoil").exists():
            for tensor in inputs:
                tensor.zero_()
            (folder / "spoilt").touch()
        while (folder / "hold").exists():
            time.sleep(0.001)
        if FAILING in names:
            raise ValueError("this one fails")
        for request, *each in zip(requests, *outputs, strict=True):
            for output in each:
                view = output.numpy().reshape(-1).view(np.uint8)
                view[:] = answer_of(request, view.size)

    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(server)
        link = front_end_link.FrontEndLink(folder / NAME, attach, infer)
        link.run(connection, lambda: not connection.recv(1, socket.MSG_PEEK))


ROLES = {"front_end": front_end, "worker": worker}


def main():
    """Fork a process for every line."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them here
    print(os.getpid(), flush=True)
    while line := sys.stdin.readline():
        role, library, options = json.loads(line)
        pid = os.fork()
        if pid == 0:
            os.close(0)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.environ["SHUNTER_NATIVE"] = library
            try:
                ROLES[role](**options)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(0)
        print(pid, flush=True)


if __name__ == "__main__":
    main()
