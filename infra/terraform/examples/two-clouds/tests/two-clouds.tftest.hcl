# All providers are mocked: what is checked is what would be asked for, by their schemas.
mock_provider "skerry" {}
mock_provider "aws" {}
mock_provider "google" {}

variables {
  join_url       = "https://10.0.0.5:8789"
  edge_cidrs     = ["10.0.0.0/24"]
  google_project = "skerry-example"
  join_tokens    = {}
}

run "pools_first" {
  command = apply

  assert {
    condition     = output.pools == ["ams-gpu", "fra-gpu", "iad-gpu"]
    error_message = "not a pool in each region"
  }
}

run "then_machines_that_join_them" {
  command = apply

  variables {
    join_tokens = { fra = "skjoin_fra", ams = "skjoin_ams", iad = "skjoin_iad" }
    machines    = { fra = 2, ams = 1, iad = 1 }
  }

  assert {
    condition     = length(output.groups) == 3
    error_message = "not a group of machines in each region"
  }
}

run "each_region_says_how_many" {
  command         = plan
  expect_failures = [var.machines]

  variables {
    machines = { fra = 2 }
  }
}
