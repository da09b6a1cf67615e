# The provider is mocked: what would be imported is invented, so that plans and names are checked alone.
mock_provider "skerry" {}

override_resource {
  target = skerry_region.this
  values = { id = "fra" }
}

override_resource {
  target = skerry_pool.decode
  values = { id = "fra-decode" }
}

run "what_is_there_is_taken_over" {
  command = apply

  assert {
    condition     = output.pool == "fra-decode"
    error_message = "another pool was imported"
  }
}

run "a_region_has_a_name" {
  command         = plan
  expect_failures = [var.region]

  variables {
    region = "Frankfurt am Main"
  }
}
