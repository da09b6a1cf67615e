"""A provider as a plugin process: handshake, TLS, gRPC on a Unix socket, and its end.

Terraform starts the process, reads one line from its stdout and calls it. Ctrl-C reaches the whole
process group, and so may SIGTERM, of a service manager or CI. Terraform gets them too and decides:
here they are ignored, and `StopProvider` counts. When Terraform was killed or has given up, calls
that still run are wound up and what it opened is closed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from skerry_terraform.kit.log import configure_logging
from skerry_terraform.kit.messages import MESSAGES, Message, message
from skerry_terraform.kit.provider import Provider
from skerry_terraform.kit.service import Service

COOKIE = "d602bf8f470bc67ca7faa0386276bbdd4330efaf76d1a219cb4d6991ca9872b2"
PROTOCOL = 6
MAX_MESSAGE_BYTES = 256 << 20  # Terraform's own limit
THREADS = 512  # made as needed; a Stop must not wait behind what `-parallelism` allows (10)
PARENT_SECONDS = 0.5  # between looks at who our parent is
ANSWER_SECONDS = 1.0  # for the answer to `Shutdown` to be sent
ORPHAN_SECONDS = 10.0  # for calls under way when Terraform is gone

Handler = Callable[[Message], Message]


def serve(provider: Provider[Any]) -> int:
    """Serve as a plugin until Terraform ends it; return the exit status."""
    if os.environ.get("TF_PLUGIN_MAGIC_COOKIE") != COOKIE:
        sys.stderr.write("This is a Terraform provider: Terraform starts it by itself.\n")
        return 1
    if str(PROTOCOL) not in os.environ.get("PLUGIN_PROTOCOL_VERSIONS", str(PROTOCOL)).split(","):
        sys.stdout.write(f"This provider needs plugin protocol {PROTOCOL}: Terraform 1.11.\n")
        return 1
    parent = os.getppid()
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    configure_logging()
    service = Service(provider)
    done = threading.Event()
    with socket_path() as path:
        server = server_of(service, done)
        certificate = _listen_with_tls(server, path)
        server.start()
        sys.stdout.write(f"1|{PROTOCOL}|unix|{path}|grpc|{certificate}\n")
        sys.stdout.flush()
        is_orphan = _orphaned(parent, done)
        service.stop.set()
        server.stop(ORPHAN_SECONDS if is_orphan else ANSWER_SECONDS).wait()
        service.close_opened()
    os._exit(0)  # a call that ignores `stop` would keep its thread, and so the process


@contextlib.contextmanager
def socket_path() -> Generator[Path]:
    """Yield a path for one, in a folder that only we may enter."""
    folder = Path(tempfile.mkdtemp(prefix="terraform-plugin-"))
    try:
        yield folder / "plugin"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _listen_with_tls(server: grpc.Server, path: Path) -> str:
    """Listen, and return our certificate as the handshake sends it.

    Terraform's own is not required: its key is on P-521, whose signatures gRPC's TLS does not take
    (the client then sends no certificate at all). Only we may enter the socket's folder instead.
    """
    from skerry_terraform.kit.certificates import new_certificate

    certificate = new_certificate()
    credentials = grpc.ssl_server_credentials([(certificate.key, certificate.chain)])
    server.add_secure_port(f"unix:{path}", credentials)
    return certificate.handshake


def _orphaned(parent: int, done: threading.Event) -> bool:
    """Wait for the end; whether it is that our parent is gone."""
    while not done.wait(PARENT_SECONDS):
        if os.getppid() != parent:
            return True
    return False


def server_of(service: Service[Any], done: threading.Event) -> grpc.Server:
    """Return what answers Terraform's calls by a service, and sets `done` at a Shutdown."""
    server = grpc.server(
        ThreadPoolExecutor(THREADS, thread_name_prefix="call"),
        options=[
            ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ],
    )

    def shutdown(request: Message) -> Message:
        done.set()
        return message("Empty")

    def stdio(request: Message, context: grpc.ServicerContext) -> Iterator[Message]:
        """Send nothing: our output goes to the log by itself."""
        return iter(())

    handlers = {
        name: _unary(request, handler) for name, (request, handler) in _calls(service).items()
    }
    streams = grpc.unary_stream_rpc_method_handler(
        stdio, MESSAGES["Empty"].FromString, MESSAGES["StdioData"].SerializeToString
    )
    for name, methods in {
        "tfplugin6.Provider": handlers,
        "plugin.GRPCController": {"Shutdown": _unary("Empty", shutdown)},
        "plugin.GRPCStdio": {"StreamStdio": streams},
    }.items():
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, methods),))
    return server


def _unary(request: str, handler: Handler) -> grpc.RpcMethodHandler:
    def serialized(answer: Message) -> bytes:
        data: bytes = answer.SerializeToString()
        return data

    return grpc.unary_unary_rpc_method_handler(
        lambda given, context: handler(given), MESSAGES[request].FromString, serialized
    )


def _calls(service: Service[Any]) -> dict[str, tuple[str, Handler]]:
    """Return every call of the protocol that is served: its request's message, and who answers."""
    managed = service.managed
    return {
        "GetMetadata": ("Empty", service.get_metadata),
        "GetProviderSchema": ("Empty", service.get_provider_schema),
        "GetFunctions": ("Empty", service.get_functions),
        "ValidateProviderConfig": (
            "ValidateProviderConfigRequest", service.validate_provider_config,
        ),
        "ConfigureProvider": ("ConfigureProviderRequest", service.configure_provider),
        "StopProvider": ("Empty", service.stop_provider),
        "ValidateResourceConfig": ("ConfigRequest", service.validate_resource_config),
        "UpgradeResourceState": ("UpgradeResourceStateRequest", managed.upgrade),
        "ReadResource": ("ReadResourceRequest", managed.read),
        "PlanResourceChange": ("PlanResourceChangeRequest", managed.plan),
        "ApplyResourceChange": ("ApplyResourceChangeRequest", managed.apply),
        "ImportResourceState": ("ImportResourceStateRequest", managed.import_),
        "ValidateDataResourceConfig": (
            "ConfigRequest", service.validate_data_resource_config,
        ),
        "ReadDataSource": ("ConfigRequest", service.read_data_source),
        "ValidateEphemeralResourceConfig": (
            "ConfigRequest", service.validate_ephemeral_resource_config,
        ),
        "OpenEphemeralResource": ("ConfigRequest", service.open_ephemeral_resource),
        "CloseEphemeralResource": ("EphemeralResourceRequest", service.close_ephemeral_resource),
        "CallFunction": ("CallFunctionRequest", service.call_function),
    }  # fmt: skip
