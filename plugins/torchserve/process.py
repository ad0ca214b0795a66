"""A TorchServe with the plugin that this process starts, as every host process is."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from shunter.batching.page import runtime
from shunter.plugins.errors import UserError
from shunter.plugins.host import GrpcClient
from shunter.plugins.torchserve import build
from shunter.plugins.torchserve.host import NAME, TorchServeHost
from shunter.plugins.torchserve.isolation import Ports
from shunter.plugins.torchserve.server import Server


def usual_ports(inference: int, grpc: int) -> Ports:
    """TorchServe's usual neighbours: management and metrics follow ``inference``."""
    wanted = (*range(inference, inference + 3), grpc, grpc + 1)
    ports = Ports(*wanted, 9000)
    if both := set(wanted[:3]) & set(wanted[3:]):
        raise UserError(
            f"port {min(both)} is wanted twice: HTTP takes {inference} to {inference + 2}, "
            f"gRPC {grpc} and {grpc + 1}; choose others with --port and --grpc"
        )
    for port in wanted:
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


def check_addresses(settings: Mapping[str, str], ports: Ports) -> None:
    """Raises UserError for lines of config.properties that name other ports than serve does."""
    places = {
        "inference_address": (ports.inference, "--port"),
        "management_address": (ports.management, "--port"),
        "metrics_address": (ports.metrics, "--port"),
        "grpc_inference_port": (ports.grpc_inference, "--grpc"),
        "grpc_management_port": (ports.grpc_management, "--grpc"),
    }
    for key, (port, option) in places.items():
        named = settings.get(key, "").rstrip("/").rpartition(":")[2]
        if named and named != str(port):
            raise UserError(
                f"--config {key}={settings[key]}: serve has port {port} there; say it by {option}"
            )


class TorchServeProcess(Server):
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
        its_ports = usual_ports(*ports) if ports else None
        if its_ports:
            check_addresses(settings, its_ports)
        super().__init__(
            model_store=store,
            models=models,
            folder=folder,
            plugins=plugins_folder(),
            config=settings,
            quiet=quiet,
            tokens=tokens,
            env=variables,
            ports=its_ports,
            runtime=runtime.parent(os.environ),
            needs_all=False,
        )

    @property
    def host(self) -> TorchServeHost:
        """See the protocol."""
        return TorchServeHost(self.management, self._key("management"))

    @property
    def addresses(self) -> dict[str, str]:
        """See the protocol."""
        return {
            "inference": f"{self.inference}/predictions/...",
            "management": self.management,
            "dashboard": f"{self.management}/shunter/",
            "metrics": f"{self.metrics}/metrics",
            "gRPC": f"127.0.0.1:{self.grpc_inference} (inference), {self.grpc_management}",
            "keys": str(self.folder / "key_file.json") if self._tokens else "off",
        }

    @property
    def status_command(self) -> str:
        """See the protocol."""
        key = self._key("management")
        option = f" --token {key}" if key else ""
        return f"shunter status --management {self.management}{option}"

    def grpc_client(self) -> AbstractContextManager[GrpcClient]:
        """See the protocol."""
        from shunter.plugins.torchserve.grpc_client import InferenceClient

        return InferenceClient(f"127.0.0.1:{self.grpc_inference}")

    def drain(self, timeout_s: float) -> bool:
        """See the protocol: SIGTERM lets the plugin answer what is held."""
        return self.stop(timeout_s) == 0
