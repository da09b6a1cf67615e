"""Providers that a test serves in its own process: Terraform calls them, and starts none."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

from skerry_terraform.kit.provider import Provider
from skerry_terraform.kit.server import PROTOCOL, server_of, socket_path
from skerry_terraform.kit.service import Service


@dataclass(frozen=True, slots=True)
class Reattached:
    """A provider served by this process; `config` belongs in TF_REATTACH_PROVIDERS."""

    config: Mapping[str, Any]
    service: Service[Any]


@contextlib.contextmanager
def reattach(provider: Provider[Any], source: str) -> Generator[Reattached]:
    """Serve in this process, without TLS, for Terraform runs that did not start it."""
    service = Service(provider)
    with socket_path() as path:
        server = server_of(service, threading.Event())
        server.add_insecure_port(f"unix:{path}")
        server.start()
        config = {
            "Protocol": "grpc",
            "ProtocolVersion": PROTOCOL,
            "Pid": os.getpid(),
            "Test": True,
            "Addr": {"Network": "unix", "String": str(path)},
        }
        try:
            yield Reattached({source: config}, service)
        finally:
            server.stop(None).wait()
            service.release()
