"""Two network namespaces with a veth between them; they end with this process. Needs root, ip."""

import contextlib
import ctypes
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor

NEW_NETWORK = 0x40000000
SERVER4, CLIENT4 = "10.7.8.1", "10.7.8.2"
OTHER4 = "10.7.8.3"
"""A second address of the server."""
SERVER6, CLIENT6 = "fd08::1", "fd08::2"
INTERFACE = "split0"


class ImpossibleError(Exception):
    """No such network here; the message says why."""


def _run(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ImpossibleError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def _enter(pid):
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/proc/{pid}/ns/net") as namespace:
        if libc.setns(namespace.fileno(), NEW_NETWORK):
            raise OSError(ctypes.get_errno(), "setns")


class Network:
    """Server and client, each with an interface and addresses of both families."""

    def __init__(self, mtu=1500, queues=1):
        for tool in ("ip", "unshare", "nsenter"):
            if not shutil.which(tool):
                raise ImpossibleError(f"there is no {tool}")
        self._stack = contextlib.ExitStack()
        self.server, self.client = (self._namespace() for _ in range(2))
        self._threads = {
            end: self._stack.enter_context(
                ThreadPoolExecutor(1, initializer=_enter, initargs=(end,))
            )
            for end in (self.server, self.client)
        }
        width = ("numrxqueues", str(queues), "numtxqueues", str(queues))
        try:
            _run(
                *("ip", "link", "add", INTERFACE, *width, "netns", str(self.server)),
                *("type", "veth", "peer", "name", INTERFACE, *width, "netns", str(self.client)),
            )
            for end, addresses in (
                (self.server, (SERVER4, OTHER4, SERVER6)),
                (self.client, (CLIENT4, CLIENT6)),
            ):
                for address in addresses:
                    whole = (f"{address}/64", "nodad") if ":" in address else (f"{address}/24",)
                    self.at(end, "ip", "address", "add", *whole, "dev", INTERFACE)
                self.at(end, "ip", "link", "set", INTERFACE, "mtu", str(mtu), "up")
                self.at(end, "ip", "link", "set", "lo", "up")
        except BaseException:
            self.close()
            raise

    def _namespace(self):
        command = ["unshare", "--net", "sh", "-c", "echo; exec cat"]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self._stack.enter_context(process)
        self._stack.callback(process.kill)
        if not process.stdout.readline():
            why = process.stderr.read().decode().strip()
            self._stack.close()
            raise ImpossibleError(why)
        return process.pid

    def at(self, end, *command):
        """What a command in one of the namespaces says."""
        return _run("nsenter", "-t", str(end), "-n", *command)

    def before(self, end):
        """What stands before a command that shall run in one of the namespaces."""
        return ["nsenter", "-t", str(end), "-n"]

    def from_client(self, function, *arguments):
        """What a function in the client's namespace returns."""
        return self._threads[self.client].submit(function, *arguments).result()

    def from_server(self, function, *arguments):
        """The same at the other end."""
        return self._threads[self.server].submit(function, *arguments).result()

    def xdp(self):
        """Whether a program runs at the server's interface."""
        return "xdp" in self.at(self.server, "ip", "link", "show", INTERFACE)

    def close(self):
        """End both."""
        self._stack.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
