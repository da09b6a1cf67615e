"""`/control/v1/terraform/states/NAME`: gone, with a word on where the states are now."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from skerry_regions.control.api.requests import PREFIX
from skerry_regions.control.desired.terraform_states import FOLDER
from skerry_regions.control.errors import Gone

STATES = f"{PREFIX}/terraform/states/"
METHODS = ("GET", "POST", "DELETE", "LOCK", "UNLOCK")  # of Terraform's `http` backend


async def state(request: Request) -> Response:
    """Refuse with Gone."""
    raise Gone(
        "the control plane keeps no Terraform states any more: each is in "
        f"SKERRY_HOME/{FOLDER}/NAME.tfstate beside it. Name another backend in the configuration, "
        "then `terraform init -reconfigure` and `terraform state push NAME.tfstate`; "
        "docs/terraform.md has the steps"
    )
