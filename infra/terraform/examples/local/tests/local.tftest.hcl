# The provider is mocked: no platform needs to run.
mock_provider "skerry" {}

run "three_regions_by_default" {
  command = apply

  assert {
    condition     = toset(keys(output.urls)) == toset(["fra", "iad", "nrt"])
    error_message = "not an edge in each region"
  }

  assert {
    condition     = toset([for pool in module.platform.pools : "${pool.region} ${pool.role}"]) == toset(["fra prefill", "fra decode", "iad prefill", "iad decode", "nrt prefill", "nrt decode"])
    error_message = "not a pool of each role in each region"
  }

  assert {
    condition     = length(module.platform.deployments["chat"].pools) == 6
    error_message = "not every pool serves the model"
  }
}

run "a_region_fewer" {
  command = apply

  variables {
    regions = { fra = "FRA", iad = "IAD" }
  }

  assert {
    condition     = length(module.platform.pools) == 4
    error_message = "pools of a region that is gone"
  }
}

run "a_runner_is_one_of_five" {
  command         = plan
  expect_failures = [var.runner]

  variables {
    runner = "cuda"
  }
}

run "somebody_decodes" {
  command         = plan
  expect_failures = [var.decode_replicas]

  variables {
    decode_replicas = 0
  }
}

run "airports_have_three_letters" {
  command         = plan
  expect_failures = [var.regions]

  variables {
    regions = { fra = "Frankfurt" }
  }
}
