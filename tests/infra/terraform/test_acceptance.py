"""Real Terraform, the provider in this process, a real control plane."""

from __future__ import annotations

import json

import pytest
from tests.e2e.command import MODEL, ROOT, until
from tests.e2e.control.control_client import ControlPlane
from tests.infra.terraform.command import FaultyProxy, Terraform, provider_block
from tests.infra.terraform.configurations import a_pool, a_region, within


def test_what_was_applied_stays_so(
    terraform: Terraform, control: ControlPlane, region: str
) -> None:
    terraform.write(within(region, replicas=0, target_itl_seconds=0.1))
    terraform.apply()
    assert terraform.is_settled()
    pool = control.get(f"pools/{region}-p")
    assert (pool["replicas"], pool["target_itl_seconds"]) == (0, 0.1)

    terraform.write(within(region, replicas=3))  # and a default comes back
    assert "0 added, 1 changed, 0 destroyed" in terraform.apply()
    pool = control.get(f"pools/{region}-p")
    assert (pool["replicas"], pool["target_itl_seconds"]) == (3, 0.2)

    control.patch(f"pools/{region}-p", replicas=9, idle_seconds=7)
    assert not terraform.is_settled()
    terraform.apply()
    assert control.get(f"pools/{region}-p")["replicas"] == 3

    control.http.delete(f"/pools/{region}-p")
    until(lambda: control.http.get(f"/pools/{region}-p").status_code == 404)
    assert "1 added, 0 changed, 0 destroyed" in terraform.apply()

    terraform.destroy()
    assert control.http.get(f"/regions/{region}").status_code == 404
    assert terraform.state() == {}


def test_fixed_fields_force_another_resource(
    terraform: Terraform, control: ControlPlane, region: str
) -> None:
    terraform.write(within(region))
    terraform.apply()
    terraform.write(within(region, role="decode"))
    assert "# forces replacement" in terraform("plan")
    assert "1 added, 0 changed, 1 destroyed" in terraform.apply()
    assert control.get(f"pools/{region}-p")["role"] == "decode"


def test_import_and_generated_configuration(
    terraform: Terraform, control: ControlPlane, region: str
) -> None:
    control.make("regions", name=region, latitude=1.25, longitude=103.75)
    control.make("pools", name="p", region=region, role="decode", replicas=2)
    terraform.write(
        f'import {{\n  to = skerry_region.r\n  id = "{region}"\n}}\n'
        f'import {{\n  to = skerry_pool.p\n  id = "{region}-p"\n}}\n'
    )
    told = terraform("plan", "-generate-config-out=generated.tf")
    assert "2 to import, 0 to add, 0 to change" in told
    terraform.apply()
    assert terraform.is_settled()
    assert terraform.state()["skerry_region.r"]["longitude"] == 103.75

    missing = f'import {{\n  to = skerry_pool.q\n  id = "{region}-q"\n}}\n'
    terraform.write(missing + a_pool(region).replace('"p"', '"q"'))
    assert f"no pool '{region}-q' to import" in terraform("plan", rc=1)


@pytest.mark.parametrize(
    ("values", "summary", "line"),
    [
        ({"role": "foo"}, "Invalid value for role", '  role = "foo"'),
        ({"replicas": 1.5}, "Invalid value for replicas", "  replicas = 1.5"),
        ({"min_replicas": 1}, "Missing max_replicas", "  min_replicas = 1"),
    ],
)
def test_a_wrong_value_is_shown_where_it_is(
    terraform: Terraform, values: dict[str, object], summary: str, line: str
) -> None:
    terraform.write('resource "terraform_data" "d" {}\n' + a_pool("fra", **values))
    done = json.loads(terraform("validate", "-json", rc=1))
    (told,) = done["diagnostics"]
    assert told["summary"] == summary
    assert told["snippet"]["code"] == line


def test_a_check_is_left_out_only_for_the_unknown_value(terraform: Terraform, region: str) -> None:
    unknown = 'resource "terraform_data" "d" { input = "p" }\n'
    pool = a_pool(region, role="foo").replace('name = "p"', "name = terraform_data.d.output")
    terraform.write(unknown + pool)
    assert "must be one of prefill, decode, hybrid; got 'foo'" in terraform("plan", rc=1)


def test_what_the_control_plane_would_refuse_is_shown_where_it_is_by_a_plan(
    terraform: Terraform, control: ControlPlane, region: str
) -> None:
    deployment = (
        'resource "skerry_deployment" "d" {\n  name = "d"\n  model = "@cf/none/such"\n'
        '  pools = ["p"]\n}\n'
    )
    wrong = a_region(region).replace("FRA", "XQX")
    wrong += a_pool(region, model="@cf/huggingfacetb/smollm2-135m-instrukt", file_tier="much")
    unknown = 'resource "terraform_data" "d" { input = "n" }\n'
    unnamed = a_region(region).replace("FRA", "QQQ").replace('"r"', '"unnamed"')
    unnamed = unnamed.replace(f'"{region}"', "terraform_data.d.output")
    terraform.write(wrong + deployment + unknown + unnamed)
    told = {
        (each["summary"], each["snippet"]["code"].strip(), each["detail"])
        for each in terraform.diagnostics("plan")
    }
    lines = (terraform.folder / "main.tf").read_text().splitlines()
    airport = "the airport {!r} is not in our list; give latitude and longitude"
    assert told == {
        ("Invalid value for iata", 'iata = "XQX"', airport.format("XQX")),
        ("Invalid value for iata", 'iata = "QQQ"', airport.format("QQQ")),
        (
            "Invalid value for file_tier", 'file_tier = "much"',
            "file_tier: expected a size such as 512MiB or 4GiB, or none",
        ),
        ("Invalid value for model", 'model = "@cf/none/such"', "No such model: @cf/none/such."),
    }  # fmt: skip
    first = next(each for each in terraform.diagnostics("plan") if "XQX" in each["detail"])
    at = first["range"]["start"]
    assert lines[at["line"] - 1] == '  iata = "XQX"'
    assert first["range"]["filename"] == "main.tf"
    pool = a_pool(region, model="@cf/huggingfacetb/smollm2-135m-instrukt")
    terraform.write(a_region(region) + pool)
    [told_of_pool] = terraform.diagnostics("plan")
    meant = "Did you mean @cf/huggingfacetb/smollm2-135m-instruct?"
    assert meant in told_of_pool["detail"]
    assert control.http.get(f"/regions/{region}").status_code == 404


@pytest.mark.parametrize("wrong", [("P_!",), ("XQX", "@cf/none/such")], ids=["names", "others"])
def test_what_is_wrong_is_refused_at_plan_with_file_and_line(
    terraform: Terraform, region: str, wrong: tuple[str, ...]
) -> None:
    """What needs no control plane first: Terraform plans nothing while a name is wrong."""
    name, airport, model = (region, *wrong) if len(wrong) > 1 else (*wrong, "FRA", MODEL)
    terraform.write(a_region(name).replace("FRA", airport))
    (terraform.folder / "pools.tf").write_text(a_pool("here", model=model))
    expected = {
        (file, number, value)
        for file in ("main.tf", "pools.tf")
        for number, line in enumerate((terraform.folder / file).read_text().splitlines(), 1)
        for value in wrong
        if f'"{value}"' in line
    }
    assert len(expected) == len(wrong)
    told = {
        (each["range"]["filename"], each["range"]["start"]["line"], value)
        for each in terraform.diagnostics("plan")
        for value in wrong
        if f'"{value}"' in each["snippet"]["code"]
    }
    assert told == expected
    shown = terraform("plan", rc=1)  # as people read it
    for file, number, _ in expected:
        assert f"on {file} line {number}, in resource" in shown


def test_a_plan_without_a_control_plane_says_that_it_was_not_checked(terraform: Terraform) -> None:
    terraform.provider = provider_block("http://127.0.0.1:9", "t", max_retries=0)
    terraform.write(a_region("here") + a_pool("here"))
    [told] = terraform.diagnostics("plan")
    assert (told["severity"], told["summary"]) == (
        "warning", "The plan was not checked by the control plane",
    )  # fmt: skip


def test_unknown_values_become_known(
    terraform: Terraform, control: ControlPlane, region: str
) -> None:
    text = f'resource "terraform_data" "d" {{ input = "{region}" }}\n' + within(region)
    text = text.replace(f'name = "{region}"', 'name = "${terraform_data.d.output}"')
    text = text.replace('name = "p"', 'name = "x-${terraform_data.d.output}"')  # refined
    text += 'output "id" { value = skerry_pool.p.id }\n'
    terraform.write(text)
    assert f"{region}-x-{region}" in terraform.apply()
    assert control.get(f"pools/{region}-x-{region}")["region"] == region
    assert terraform.is_settled()


def test_data_sources_and_functions(
    terraform: Terraform, control: ControlPlane, region: str
) -> None:
    control.make("regions", name=region, iata="FRA")
    control.make("pools", name="p", region=region, role="decode", replicas=2)
    terraform.write(
        f'data "skerry_pool" "p" {{ id = provider::skerry::pool_id("{region}", "p") }}\n'
        f'data "skerry_pools" "all" {{ region = "{region}" }}\n'
        f'data "skerry_region" "r" {{ id = "{region}" }}\n'
        'data "skerry_platform_status" "s" {}\n'
        'output "all" { value = [data.skerry_pool.p.replicas, data.skerry_region.r.iata, '
        "length(data.skerry_pools.all.pools), data.skerry_platform_status.s.account_id] }\n"
        f'output "url" {{ value = provider::skerry::endpoint_url("http://e", '
        f'"{control.account}", "@cf/m") }}\n'
    )
    terraform.apply()
    told = json.loads(terraform("output", "-json"))
    assert told["all"]["value"] == [2, "FRA", 1, control.account]
    url = f"http://e/client/v4/accounts/{control.account}/ai/run/@cf/m"
    assert told["url"]["value"] == url
    terraform.write('output "url" { value = provider::skerry::endpoint_url("e", "a", "m") }\n')
    assert "'e' is not a URL of an edge" in terraform("plan", rc=1)


# --- secrets -------------------------------------------------------------------------------------


def test_an_ephemeral_token_works_and_leaves_nothing(
    terraform: Terraform, control: ControlPlane, proxy: FaultyProxy
) -> None:
    terraform.write('ephemeral "skerry_api_token" "t" {\n  name = "for one run"\n}\n')
    told = terraform.apply()
    assert "Closing complete" in told
    assert proxy.seen("POST")
    tokens = control.get("api_tokens")["items"]
    assert [token for token in tokens if token["name"] == "for one run"] == []
    state = terraform.folder / "terraform.tfstate"
    assert "skerry_" not in (state.read_text() if state.exists() else "")


def test_a_token_is_kept_and_rotated(terraform: Terraform, control: ControlPlane) -> None:
    text = 'resource "skerry_api_token" "t" {\n  name = "ci"\n  scopes = ["admin", "read"]\n}\n'
    terraform.write(text)
    assert "(sensitive value)" in terraform.apply()
    first = terraform.state()["skerry_api_token.t"]
    assert terraform.is_settled()
    terraform.write(text.replace("}", "  per_day = 2.5\n}"))
    assert "0 added, 1 changed, 0 destroyed" in terraform.apply()
    capped = terraform.state()["skerry_api_token.t"]
    assert (capped["secret"], capped["per_day"]) == (first["secret"], 2.5)
    assert control.get(f"api_tokens/{first['id']}")["per_day"] == 2.5
    assert terraform.is_settled()
    terraform.write(text.replace("}", '  rotate_when_changed = { month = "11" }\n}'))
    terraform.apply()
    second = terraform.state()["skerry_api_token.t"]
    assert second["secret"] != first["secret"]
    assert second["secret"].startswith(f"skerry_{second['id']}_")
    assert control.http.get(f"/api_tokens/{first['id']}").status_code == 404
    terraform.destroy()
    assert control.http.get(f"/api_tokens/{second['id']}").status_code == 404


def test_the_example_of_the_documentation_is_valid(terraform: Terraform) -> None:
    page = (ROOT / "docs" / "terraform.md").read_text()
    example = page.split("```hcl\n")[1].split("```")[0]
    (terraform.folder / "main.tf").write_text(example)
    assert "The configuration is valid." in terraform("validate")
