"""The options of `skerry control` for nodes on pods of Kubernetes."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from skerry_cli.home.errors import CommandFailed, raised_as

if TYPE_CHECKING:
    from skerry_cli.composition.serve_machines import PodOptions

IN_CLUSTER = "in-cluster"


class BadOptions(CommandFailed):
    """The options do not go together; the message says why."""


def add_pods(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "nodes on pods of Kubernetes",
        "Of pools with `launcher: kubernetes`: a StatefulSet for each, with as many pods as its "
        "nodes need, which join (--join-host). docs/kubernetes.md says what rights that takes.",
    )
    group.add_argument(
        "--kubernetes",
        metavar="URL",
        help=f"https://HOST:PORT of the API server; {IN_CLUSTER}: of the cluster that this runs in",
    )
    group.add_argument(
        "--kubernetes-join",
        metavar="URL",
        help="where pods reach this control plane, such as https://skerry-control:8789",
    )
    group.add_argument("--kubernetes-namespace", metavar="NAME", help="default: the pod's own")
    group.add_argument(
        "--kubernetes-token-file",
        type=Path,
        metavar="FILE",
        help="bearer token, read for each call (default: the pod's service account's)",
    )
    group.add_argument("--kubernetes-ca-file", type=Path, metavar="FILE", help="default: likewise")
    group.add_argument(
        "--kubernetes-image", metavar="IMAGE", help="of the pods (default: the pod's own)"
    )
    group.add_argument(
        "--kubernetes-template",
        type=Path,
        metavar="FILE",
        help="a StatefulSet to make them of, in YAML (default: that of Skerry)",
    )


def pods_of(args: argparse.Namespace) -> PodOptions | None:
    """Return what the options say; None without them. Raises BadOptions."""
    if args.kubernetes is None:
        return None
    from skerry_cli.composition.serve_machines import PodOptions
    from skerry_regions.control.kubernetes.api_server import ACCOUNT, AccessError, ClusterAccess
    from skerry_regions.control.kubernetes.pool_pods import TEMPLATE

    if args.kubernetes_join is None:
        raise BadOptions(
            "--kubernetes: give --kubernetes-join, where pods reach this control plane"
        )
    with raised_as(BadOptions, AccessError):
        if args.kubernetes == IN_CLUSTER:
            access = ClusterAccess.of_pod(os.environ)
        else:
            access = ClusterAccess(
                server=args.kubernetes, namespace="", token_file=ACCOUNT / "token",
                ca_file=ACCOUNT / "ca.crt",
            )  # fmt: skip
    access = replace(
        access,
        namespace=args.kubernetes_namespace or access.namespace,
        token_file=args.kubernetes_token_file or access.token_file,
        ca_file=args.kubernetes_ca_file or access.ca_file,
    )
    if not access.namespace:
        raise BadOptions("--kubernetes: give --kubernetes-namespace")
    return PodOptions(
        access=access,
        join=args.kubernetes_join,
        image=args.kubernetes_image or "",
        template=args.kubernetes_template or TEMPLATE,
    )
