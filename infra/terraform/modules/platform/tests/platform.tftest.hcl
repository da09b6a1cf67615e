# The provider is mocked: no control plane is asked.
mock_provider "skerry" {}

variables {
  regions = {
    fra = {
      iata      = "FRA"
      residency = "eu"
      pools = {
        prefill = { role = "prefill", replicas = 1 }
        decode  = { role = "decode", min_replicas = 0, max_replicas = 4, target_itl_seconds = 0.1 }
        embed   = { role = "hybrid", model = "@cf/sentence-transformers/all-minilm-l6-v2" }
      }
    }
    pop = {
      latitude  = -33.9
      longitude = 18.6
      pools     = { decode = { role = "decode", replicas = 2, threads = 4 } }
      edges     = { one = {}, two = { host = "10.0.0.2", port = 443, addresses = ["192.0.2.2"] } }
    }
  }

  deployments = {
    chat = { model = "@cf/huggingfacetb/smollm2-135m-instruct" }
  }

  tokens = {
    ci = { scopes = ["run"] }
  }
}

run "all_of_the_map_is_there" {
  command = apply

  assert {
    condition     = length(output.regions) == 2
    error_message = "not the regions asked for"
  }

  assert {
    condition     = { for id, pool in skerry_pool.this : id => "${pool.region} ${pool.name} ${pool.role}" } == { fra-prefill = "fra prefill prefill", fra-decode = "fra decode decode", fra-embed = "fra embed hybrid", pop-decode = "pop decode decode" }
    error_message = "not the pools asked for"
  }

  assert {
    condition     = { for name, edge in skerry_edge_node.this : name => "${edge.region} ${edge.host} ${edge.port}" } == { fra-edge = "fra 127.0.0.1 0", pop-one = "pop 127.0.0.1 0", pop-two = "pop 10.0.0.2 443" }
    error_message = "not the edges asked for"
  }

  assert {
    condition     = { for name, edge in skerry_edge_node.this : name => join(" ", edge.addresses) } == { fra-edge = "", pop-one = "", pop-two = "192.0.2.2" }
    error_message = "DNS would tell other addresses than those asked for"
  }

  assert {
    condition     = skerry_region.this["fra"].residency == "eu" && skerry_region.this["pop"].latitude == -33.9
    error_message = "regions are elsewhere"
  }
}

run "a_deployment_takes_the_pools_without_a_model" {
  command = apply

  assert {
    condition     = local.deployed["chat"] == toset(["fra-prefill", "fra-decode", "pop-decode"])
    error_message = "not the pools without a model of their own"
  }

  assert {
    condition     = toset([for id in local.deployed["chat"] : skerry_pool.this[id].id]) == skerry_deployment.this["chat"].pools
    error_message = "pools are not named by their ids"
  }
}

run "a_deployment_takes_the_pools_it_names" {
  command = apply

  variables {
    deployments = { chat = { model = "@cf/huggingfacetb/smollm2-135m-instruct", pools = ["decode"] } }
  }

  assert {
    condition     = local.deployed["chat"] == toset(["fra-decode", "pop-decode"])
    error_message = "not the pools of that name"
  }
}

run "a_token_is_new_when_it_is_rotated" {
  command = apply

  variables {
    tokens = { ci = { rotate = "2026-11" } }
  }

  assert {
    condition     = skerry_api_token.this["ci"].rotate_when_changed == tomap({ rotate = "2026-11" })
    error_message = "a token is not rotated"
  }
}

run "there_is_no_zone_unless_asked_for" {
  command = apply

  assert {
    condition     = length(skerry_dns_zone.this) == 0 && length(skerry_dns_record.this) == 0
    error_message = "a zone that nobody asked for"
  }
}

run "a_zone_knows_where_clients_are" {
  command = apply

  variables {
    dns = {
      zone        = "example.test"
      nameservers = [{ name = "ns1", addresses = ["192.0.2.53"] }]
      nets        = { "203.0.113.0/24" = { region = "fra" } }
      records     = [{ name = "www", type = "CNAME", values = ["ai"] }]
    }
  }

  assert {
    condition     = [for net in skerry_dns_zone.this[0].nets : "${net.net} ${net.region}"] == ["203.0.113.0/24 fra"]
    error_message = "nets are others"
  }

  assert {
    condition     = skerry_dns_record.this["www CNAME"].zone == "example.test"
    error_message = "a record is in another zone"
  }
}

run "a_net_is_at_a_region_that_is_there" {
  command         = plan
  expect_failures = [var.dns]

  variables {
    dns = { zone = "example.test", nameservers = [{ name = "ns1" }], nets = { "203.0.113.0/24" = { region = "nrt" } } }
  }
}

run "a_region_is_somewhere" {
  command         = plan
  expect_failures = [var.regions]

  variables {
    regions     = { fra = { latitude = 50, pools = {} } }
    deployments = {}
  }
}

run "a_role_is_one_of_three" {
  command         = plan
  expect_failures = [var.regions]

  variables {
    regions     = { fra = { iata = "FRA", pools = { decode = { role = "mixed" } } } }
    deployments = {}
  }
}

run "replicas_are_fixed_or_scaled" {
  command         = plan
  expect_failures = [var.regions]

  variables {
    regions     = { fra = { iata = "FRA", pools = { decode = { role = "decode", replicas = 2, max_replicas = 4 } } } }
    deployments = {}
  }
}

run "something_decodes" {
  command         = plan
  expect_failures = [var.regions]

  variables {
    regions     = { fra = { iata = "FRA", pools = { prefill = { role = "prefill" } } } }
    deployments = {}
  }
}

run "a_deployment_names_pools_that_are_there" {
  command         = plan
  expect_failures = [var.deployments]

  variables {
    deployments = { chat = { model = "@cf/a/b", pools = ["decoder"] } }
  }
}

run "a_deployment_has_a_pool" {
  command         = plan
  expect_failures = [skerry_deployment.this]

  variables {
    regions = { fra = { iata = "FRA", pools = { decode = { role = "decode", model = "@cf/a/b" } } } }
  }
}

run "scopes_are_three" {
  command         = plan
  expect_failures = [var.tokens]

  variables {
    tokens = { ci = { scopes = ["write"] } }
  }
}
