"""A TorchServe with the plugin that this process starts, as every host process is."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from shunter.plugins.errors import UserError
from shunter.plugins.host import GrpcClient
from shunter.plugins.torchserve import build
from shunter.plugins.torchserve.host import NAME, TorchServeHost
from shunter.plugins.torchserve.isolation import Ports
from shunter.plugins.torchserve.server import Server


def usual_ports(inference: int, grpc: int) -> Ports:
    """TorchServe's usual neighbours: management and metrics follow ``inference``."""
    ports = Ports(inference, inference + 1, inference + 2, grpc, grpc + 1, 9000)
    for port in (inference, inference + 1, inference + 2, grpc, grpc + 1):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except (OSError, OverflowError) as error:
                raise UserError(
                    f"port {port} cannot be used ({error}): choose others with --port and --grpc"
                ) from error
    return ports


def plugins_folder(output: Path | None = None, *, force: bool = False) -> Path:
    """The folder for ``--plugins-path``; the jar is built when missing or stale, or by force."""
    try:
        return (build.build if force else build.ensure)(output)
    except build.JarError as error:
        raise UserError(str(error)) from error


class TorchServeProcess:
    """The :class:`shunter.plugins.host.HostProcess` of TorchServe."""

    name = NAME

    def __init__(
        self,
        *,
        store: Path,
        models: Sequence[str],
        settings: Mapping[str, str],
        variables: Mapping[str, str],
        tokens: bool,
        folder: Path | None,
        ports: tuple[int, int] | None,
        quiet: bool,
    ) -> None:
        """``settings`` are of config.properties, ``ports`` of HTTP and gRPC (None: free ones)."""
        self._server = Server(
            model_store=store,
            models=models,
            folder=folder,
            plugins=plugins_folder(),
            config=settings,
            quiet=quiet,
            tokens=tokens,
            env=variables,
            ports=usual_ports(*ports) if ports else None,
        )

    @property
    def log(self) -> Path:
        """See the protocol."""
        return self._server.log

    @property
    def inference(self) -> str:
        """See the protocol."""
        return self._server.inference

    @property
    def pid(self) -> int:
        """Of the JVM."""
        return self._server.pid

    @property
    def host(self) -> TorchServeHost:
        """See the protocol."""
        return TorchServeHost(self._server.management, self._key)

    @property
    def running(self) -> bool:
        """See the protocol."""
        return self._server.running

    @property
    def _key(self) -> str | None:
        return self._server.keys.get("management", {}).get("key")

    @property
    def addresses(self) -> dict[str, str]:
        """See the protocol."""
        server = self._server
        return {
            "inference": f"{server.inference}/predictions/...",
            "management": server.management,
            "metrics": f"{server.metrics}/metrics",
            "gRPC": f"127.0.0.1:{server.grpc_inference} (inference), {server.grpc_management}",
            "keys": str(server.folder / "key_file.json") if self._key else "off",
        }

    @property
    def status_command(self) -> str:
        """See the protocol."""
        option = f" --token {self._key}" if self._key else ""
        return f"shunter status --management {self._server.management}{option}"

    def grpc_client(self) -> AbstractContextManager[GrpcClient]:
        """See the protocol."""
        from shunter.plugins.torchserve.grpc_client import InferenceClient

        return InferenceClient(f"127.0.0.1:{self._server.grpc_inference}")

    def start(self, timeout_s: float = 120) -> None:
        """See the protocol."""
        self._server.start(timeout_s)

    def drain(self, timeout_s: float) -> bool:
        """See the protocol: SIGTERM lets the plugin answer what is held."""
        return self._server.stop(timeout_s) == 0
