"""Where the control plane is, and who calls: by the provider block, environment or machine."""

from __future__ import annotations

import ipaddress
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from skerry_terraform.kit.diagnostics import ProviderError
from skerry_terraform.kit.planning import Object
from skerry_terraform.kit.schema import Attr, Schema, whole
from skerry_terraform.kit.values import NUMBER, UNKNOWN

DEFAULT_TIMEOUT_SECONDS = 30
DEFAULT_RETRIES = 16  # with their pauses more than a minute
MAX_CONFIG_BYTES = 64 * 1024
VARIABLES = {
    "endpoint": "SKERRY_CONTROL_URL",
    "token": "SKERRY_API_TOKEN",
    "ca_file": "SKERRY_CONTROL_CA_FILE",
    "timeout_seconds": "SKERRY_CONTROL_TIMEOUT_SECONDS",
    "max_retries": "SKERRY_CONTROL_MAX_RETRIES",
}
_check_timeout, _check_retries = whole(1, 600), whole(0, 100)
_TOKEN = re.compile(r"[!-~]{1,4096}")

SCHEMA = Schema(
    doc="A platform of Skerry, by way of its control plane.",
    attributes={
        "endpoint": Attr(
            optional=True, doc="URL of the control plane; of several, with commas between them."
        ),
        "token": Attr(optional=True, sensitive=True, doc="API token of an operator."),
        "ca_file": Attr(optional=True, doc="Certificates to trust, PEM."),
        "timeout_seconds": Attr(
            NUMBER, optional=True, check=_check_timeout, doc="Of one request; 30 if not given."
        ),
        "max_retries": Attr(
            NUMBER, optional=True, check=_check_retries, doc="Of one request; 16 if not given."
        ),
    },
)


@dataclass(frozen=True, slots=True)
class ControlAddress:
    """Where one control plane is. `tls` is None for plain HTTP."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None

    @property
    def url(self) -> str:
        scheme = "http" if self.tls is None else "https"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderSettings:
    """How the platform's control planes are called."""

    addresses: tuple[ControlAddress, ...]
    token: str
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    max_retries: int = DEFAULT_RETRIES

    @property
    def url(self) -> str:
        return ",".join(address.url for address in self.addresses)


def settings_of(config: Object, environ: Mapping[str, str], home: Path) -> ProviderSettings:
    """Return the settings; `home` is the person's. Raises ProviderError with the argument's
    path."""
    for name in VARIABLES:
        if config.get(name) is UNKNOWN:
            raise ProviderError(
                f"{name} is not known yet",
                "The provider needs it to plan. Apply what it comes from first "
                "(`terraform apply -target=…`), or give it as a variable.",
                (name,),
            )
    given = {
        name: config[name] if config.get(name) is not None else environ.get(variable) or None
        for name, variable in VARIABLES.items()
    }
    written = _written(environ, home)
    endpoint = given["endpoint"] or written.get("control_url")
    if not endpoint:
        raise _missing("endpoint", "URL of the control plane")
    is_ours = endpoint == written.get("control_url")
    token = given["token"] or (written.get("api_token") if is_ours else None)
    if not token:
        raise _missing("token", f"API token of an operator of {endpoint}")
    _check_token(token)
    found = [_endpoint(each.strip()) for each in endpoint.split(",")]
    tls = _trust(given["ca_file"]) if any(is_tls for _, _, is_tls in found) else None
    return ProviderSettings(
        addresses=tuple(
            ControlAddress(host, port, tls if is_tls else None) for host, port, is_tls in found
        ),
        token=token,
        timeout_seconds=_number(given, "timeout_seconds", DEFAULT_TIMEOUT_SECONDS),
        max_retries=_number(given, "max_retries", DEFAULT_RETRIES),
    )


def _written(environ: Mapping[str, str], home: Path) -> dict[str, Any]:
    """Return what `skerry up` has written on this machine; empty where it never ran."""
    root = Path(environ.get("SKERRY_HOME") or home / ".skerry").expanduser()
    try:
        with (root / "config.json").open("rb") as file:
            return msgspec.json.decode(file.read(MAX_CONFIG_BYTES), type=dict[str, Any])
    except OSError:
        return {}
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProviderError(f"{root / 'config.json'} is damaged", str(error)) from None


def _missing(name: str, what: str) -> ProviderError:
    return ProviderError(
        f"{name} is missing",
        f"Give the provider its {name}: {what}. Or set {VARIABLES[name]}, or run `skerry up` on "
        "this machine, which writes down both for it.",
        (name,),
    )


def _check_token(token: str) -> None:
    """Check it without quoting it; `http.client` would quote one that no header takes."""
    if not _TOKEN.fullmatch(token):
        raise ProviderError(
            "Invalid value for token",
            "must be one word of ASCII, without a line's end; of a file, say trimspace(file(…))",
            ("token",),
        )


def _endpoint(text: str) -> tuple[str, int, bool]:
    """Return host, port, and whether it is HTTPS."""
    try:
        url = urlsplit(text)
        host, port = url.hostname, url.port
    except ValueError:
        host, port, url = None, None, urlsplit("")
    if not host or url.scheme not in ("http", "https") or url.path not in ("", "/") or url.query:
        raise ProviderError(
            "Invalid value for endpoint",
            f"must be a URL without a path, such as https://control.example.org; got {text!r}",
            ("endpoint",),
        )
    is_tls = url.scheme == "https"
    if not is_tls and not _is_loopback(host):
        raise ProviderError(
            "Invalid value for endpoint",
            f"the token would cross the network in the clear: use https, not {text}",
            ("endpoint",),
        )
    return host, port or (443 if is_tls else 80), is_tls


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _trust(ca_file: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise ProviderError(
            "Invalid value for ca_file",
            f"cannot read certificates from {ca_file}: {error.strerror or error}",
            ("ca_file",),
        ) from None


def _number(given: Mapping[str, Any], name: str, default: int) -> int:
    """Return that of the block, which was checked, or of the environment, which was not."""
    value = given[name]
    if value is None:
        return default
    text = str(value)
    check = _check_timeout if name == "timeout_seconds" else _check_retries
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else text
    if complaint := check(number):
        raise ProviderError(f"Invalid value for {VARIABLES[name]}", complaint, (name,))
    return int(number)
