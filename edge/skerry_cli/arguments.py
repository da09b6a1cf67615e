"""Pieces of argparse that the subcommands share."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, get_args

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]
else:
    Commands = argparse.Action  # generic for type checkers only

from skerry.runners import STAGE_ADDRESS, FloatsForm, KVForm
from skerry_regions.known_hosts import hosts_of
from skerry_regions.spec_types import DEFAULT_CONSOLE
from skerry_regions.zones import GLOBAL, is_zone

UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def add_command(
    commands: Commands,
    name: str,
    command: Callable[[argparse.Namespace], int],
    *,
    help: str,
    description: str,
    example: str,
) -> argparse.ArgumentParser:
    """Return a subcommand whose `--help` ends with an example; `command` returns the
    exit status."""
    parser = commands.add_parser(
        name,
        help=help,
        description=description,
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(command=command)
    return parser


def add_residency(parser: argparse.ArgumentParser, *, of: str = "its region") -> None:
    """Add `--residency`; `of` says whose zone is meant."""
    parser.add_argument(
        "--residency",
        type=zone,
        default=GLOBAL,
        metavar="ZONE",
        help=f"residency zone of {of} (default: %(default)s)",
    )


def add_forms(parser: argparse.ArgumentParser) -> None:
    """Add what weights and KV are kept in."""
    parser.add_argument(
        "--weights",
        choices=get_args(FloatsForm),
        help="what floats of weight files are kept in (default, on numba: q8_0 for safetensors, "
        "keep for GGUF; int8, int4 and fp8 are of torch on a GPU)",
    )
    parser.add_argument(
        "--kv",
        choices=get_args(KVForm),
        help="what KV is kept in, by torch on a GPU (default: bfloat16)",
    )


def add_engine(parser: argparse.ArgumentParser) -> None:
    """Add what is said of an engine, but for its KV."""
    parser.add_argument(
        "--streams",
        type=count,
        metavar="N",
        help="that run at once (default: 64; on a GPU as many as its memory has room for, to 256)",
    )
    parser.add_argument(
        "--step-tokens",
        type=count,
        metavar="N",
        help="tokens computed in one step at most (default: 512; on a GPU as many as its memory "
        "has room for, to 8192)",
    )
    parser.add_argument(
        "--draft-tokens",
        type=count_or_zero,
        metavar="N",
        help="tokens of a stream that a step may try; 0 for none (default: 8; 0 on a GPU, whose "
        "steps overlap without)",
    )
    parser.add_argument(
        "--tensor",
        type=count,
        metavar="N",
        help="ranks that share each layer of the model (default, with --pipeline: as many as its "
        "devices need to hold it)",
    )
    parser.add_argument(
        "--pipeline", type=count, metavar="N", help="ranks, one behind the other, with some layers"
    )
    parser.add_argument(
        "--stages",
        type=stages,
        metavar="HOST:PORT,…",
        help="machines that run `skerry stage`, one for each rank of --pipeline after the first "
        "(default: they are processes of this machine)",
    )
    parser.add_argument(
        "--pin-share",
        type=share,
        metavar="SHARE",
        help="part of the KV that one account may keep cached for the time it says (default: 0.25)",
    )


def add_tls(parser: argparse.ArgumentParser, *, note: str) -> None:
    """Add `--tls-cert` and `--tls-key`; `note` is what else to know of the certificate."""
    parser.add_argument(
        "--tls-cert",
        type=Path,
        metavar="FILE",
        help=f"serve HTTPS with this certificate: PEM, with the chain; {note}",
    )
    parser.add_argument("--tls-key", type=Path, metavar="FILE", help="its key: PEM, not encrypted")


def add_console(parser: argparse.ArgumentParser) -> None:
    """Add `--console`, which is absent unless given."""
    parser.add_argument(
        "--console",
        choices=("off", "loopback", "on"),
        help="show its pages to nobody, to browsers on this machine, or to whoever comes "
        f"(default: {DEFAULT_CONSOLE})",
    )


def is_half_tls(args: argparse.Namespace) -> bool:
    """Return one of the two without the other."""
    return (args.tls_cert is None) != (args.tls_key is None)


def tls_of(args: argparse.Namespace) -> tuple[Path, Path] | None:
    """Return the certificate and the key, where they are given."""
    return (args.tls_cert, args.tls_key) if args.tls_cert is not None else None


def stage(text: str) -> str:
    """Return HOST:PORT at which stages are served."""
    if re.fullmatch(STAGE_ADDRESS, text) is None or int(text.rpartition(":")[2]) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT, such as 10.0.0.7:8795")
    return text


def stages(text: str) -> tuple[str, ...]:
    """Return HOST:PORT of machines that commas separate."""
    return tuple(map(stage, text.split(",")))


def zone(text: str) -> str:
    if not is_zone(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a zone's name, such as eu")
    return text


def known_hosts(text: str) -> frozenset[str]:
    """Return names and addresses that commas separate."""
    try:
        return hosts_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def http_url(text: str) -> str:
    """Return a URL without a path."""
    if re.fullmatch(r"https?://[^/?#\s]{1,290}", text) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not http:// or https:// and a host")
    return text


def port(text: str) -> int:
    """Return a TCP port; 0 has the system choose a free one."""
    if not text.isascii() or not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: 0 to 65535")
    return int(text)


def count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 1 << 31:
        raise argparse.ArgumentTypeError(f"{text!r} is not a count: give a whole number from 1 up")
    return int(text)


def count_or_zero(text: str) -> int:
    return 0 if text == "0" else count(text)


def number(text: str) -> float:
    """Return a number; NaN, which is in no range, for another text."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def positive_seconds(text: str) -> float:
    seconds = number(text)
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration in seconds above 0")
    return seconds


def dollars_or_none(text: str) -> float | None:
    """Parse US$; None for `none`."""
    if text.strip().lower() == "none":
        return None
    dollars = number(text)
    if not 0 <= dollars <= 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is no sum in US$: such as 5 or 0.25, or none")
    return dollars


def days_or_hours(text: str) -> int:
    """Return a time from now, such as 90d or 12h, in seconds."""
    match = re.fullmatch(r"([0-9]{1,5})([mhdw])", text.strip().lower())
    seconds = (
        int(match[1]) * {"m": 60, "h": 3600, "d": 86_400, "w": 604_800}[match[2]] if match else 0
    )
    if not 0 < seconds <= 10 * 366 * 86_400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 90d, 12h or 30m")
    return seconds


def share(text: str) -> float:
    """Parse a number from 0 to 1."""
    found = number(text)
    if not 0 <= found <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no share: from 0 to 1, such as 0.25")
    return found


def byte_size_or_none(text: str) -> int:
    """Parse as `byte_size` does; 0 for `none`."""
    return 0 if text.strip().lower() == "none" else byte_size(text)


def byte_size(text: str) -> int:
    """Return bytes from `750M`, `2GiB`, `1.5g` or a plain number; units are powers of 1024."""
    match = re.fullmatch(
        r"([0-9]{1,12}(?:\.[0-9]{1,6})?)\s*([kmgt]?)(?:i?b)?", text.strip().lower()
    )
    if match is None or not float(match[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is not a size: write for instance 750M or 2G")
    return int(float(match[1]) * UNITS[match[2]])
