# The provider is mocked: what is checked is what would be asked of Cloudflare, by the published schema.
mock_provider "cloudflare" {}

variables {
  account_id = "0123456789abcdef0123456789abcdef"
  zone_id    = "fedcba9876543210fedcba9876543210"
  hostname   = "ai.example.com"
  fallback   = "iad"

  regions = {
    fra = {
      edges     = { fra-edge = { address = "203.0.113.1" }, fra-spare = { address = "203.0.113.2", weight = 0.5 } }
      latitude  = 50.03
      longitude = 8.57
      areas     = ["WEU", "EEU"]
      countries = ["CH"]
    }
    iad = {
      edges     = { iad-edge = { address = "198.51.100.1" } }
      latitude  = 38.94
      longitude = -77.46
      areas     = ["ENAM", "WEU"]
    }
  }
}

run "clients_go_to_the_region_of_their_area" {
  command = apply

  assert {
    condition     = cloudflare_load_balancer.geo.steering_policy == "geo"
    error_message = "areas are not looked at"
  }

  assert {
    condition     = { for area, pools in cloudflare_load_balancer.geo.region_pools : area => length(pools) } == { EEU = 1, ENAM = 1, WEU = 2 }
    error_message = "areas have other regions than asked for"
  }

  assert {
    condition     = cloudflare_load_balancer.geo.country_pools["CH"] == tolist([cloudflare_load_balancer_pool.region["fra"].id])
    error_message = "a country has another region than asked for"
  }

  assert {
    condition     = cloudflare_load_balancer.geo.fallback_pool == cloudflare_load_balancer_pool.region["iad"].id && length(cloudflare_load_balancer.geo.default_pools) == 2
    error_message = "the fallback is another region"
  }
}

run "a_region_is_its_healthy_edges" {
  command = apply

  assert {
    condition     = { for origin in cloudflare_load_balancer_pool.region["fra"].origins : origin.name => [origin.address, origin.weight] } == { fra-edge = ["203.0.113.1", 1], fra-spare = ["203.0.113.2", 0.5] }
    error_message = "a region's edges are others"
  }

  assert {
    condition     = cloudflare_load_balancer_monitor.edge.path == "/healthz" && cloudflare_load_balancer_monitor.edge.type == "https"
    error_message = "edges are not asked whether they are well"
  }
}

run "without_areas_the_nearest_serves" {
  command = apply

  variables {
    regions = { iad = { edges = { iad-edge = { address = "198.51.100.1" } }, latitude = 38.94, longitude = -77.46 } }
  }

  assert {
    condition     = cloudflare_load_balancer.geo.steering_policy == "proximity"
    error_message = "distance is not looked at"
  }
}

run "the_fallback_is_a_region" {
  command         = plan
  expect_failures = [var.fallback]

  variables {
    fallback = "nrt"
  }
}

run "an_area_is_cloudflares" {
  command         = plan
  expect_failures = [var.regions]

  variables {
    regions = { iad = { edges = { e = { address = "198.51.100.1" } }, latitude = 38.94, longitude = -77.46, areas = ["EUROPE"] } }
  }
}

run "a_region_has_an_edge" {
  command         = plan
  expect_failures = [var.regions]

  variables {
    regions = { iad = { edges = {}, latitude = 38.94, longitude = -77.46 } }
  }
}
