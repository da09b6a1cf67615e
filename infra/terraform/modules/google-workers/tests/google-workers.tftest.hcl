# The provider is mocked: what is checked is what would be asked of Google Cloud, by the published schema.
mock_provider "google" {}

variables {
  name       = "decode"
  project    = "skerry-example"
  join_url   = "https://control.example.com:8789"
  edge_cidrs = ["203.0.113.0/28"]

  join_tokens = {
    europe-west4 = "skjoin_of_ams"
    us-central1  = "skjoin_of_iad"
  }

  regions = {
    europe-west4 = {
      cidr         = "10.3.0.0/20"
      zones        = ["europe-west4-a", "europe-west4-b"]
      machine_type = "g2-standard-8"
      machines     = 2
    }
    us-central1 = {
      cidr         = "10.4.0.0/20"
      zones        = ["us-central1-a"]
      machine_type = "n1-standard-8"
      machines     = 1
      accelerator  = { type = "nvidia-tesla-t4", count = 1 }
      options      = ["--threads", "8"]
    }
  }
}

run "each_region_has_its_own" {
  command = apply

  assert {
    condition     = { for name, group in google_compute_region_instance_group_manager.node : name => [group.region, group.target_size] } == { europe-west4 = ["europe-west4", 2], us-central1 = ["us-central1", 1] }
    error_message = "not one group per region, of the size asked for"
  }

  assert {
    condition     = { for name, subnet in google_compute_subnetwork.this : name => subnet.ip_cidr_range } == { europe-west4 = "10.3.0.0/20", us-central1 = "10.4.0.0/20" }
    error_message = "not one subnet per region, of its range"
  }

  assert {
    condition     = { for name, template in google_compute_region_instance_template.node : name => [for each in template.guest_accelerator : each.type] } == { europe-west4 = [], us-central1 = ["nvidia-tesla-t4"] }
    error_message = "accelerators are not those asked for"
  }

  assert {
    condition     = strcontains(google_compute_region_instance_template.node["us-central1"].metadata["user-data"], "SKERRY_OPTIONS=--threads 8")
    error_message = "machines are not told their options"
  }
}

run "only_edges_and_nodes_come_in" {
  command = apply

  assert {
    condition     = google_compute_firewall.edges[0].source_ranges == toset(["203.0.113.0/28"])
    error_message = "edges cannot come in, or others can"
  }

  assert {
    condition     = google_compute_firewall.nodes.source_tags == google_compute_firewall.nodes.target_tags
    error_message = "what is for nodes is open to others"
  }
}

run "without_edges_no_rule_for_them" {
  command = apply

  variables {
    edge_cidrs = []
  }

  assert {
    condition     = length(google_compute_firewall.edges) == 0
    error_message = "a rule without sources is open to all"
  }
}

run "a_machine_is_shut_in" {
  command = apply

  assert {
    condition     = alltrue([for template in google_compute_region_instance_template.node : !strcontains(template.metadata["user-data"], "skjoin_")])
    error_message = "user data holds a join token"
  }

  assert {
    condition     = alltrue([for member in google_secret_manager_secret_iam_member.node : member.role == "roles/secretmanager.secretAccessor"])
    error_message = "machines may do more than read their tokens"
  }
}

run "other_tokens_are_written_when_counted" {
  command = apply

  variables {
    join_tokens_version = 2
  }

  assert {
    condition     = alltrue([for version in google_secret_manager_secret_version.join_token : tonumber(version.secret_data_wo_version) == 2])
    error_message = "the tokens of before stay"
  }
}

run "each_region_needs_a_token" {
  command         = plan
  expect_failures = [var.join_tokens]

  variables {
    join_tokens = { europe-west4 = "skjoin" }
  }
}

run "zones_are_the_regions_own" {
  command         = plan
  expect_failures = [var.regions]

  variables {
    join_tokens = { us-central1 = "skjoin" }
    regions     = { us-central1 = { cidr = "10.4.0.0/20", zones = ["us-east1-b"], machine_type = "g2-standard-8", machines = 1 } }
  }
}

run "a_range_of_the_whole_internet_has_many_names" {
  command         = plan
  expect_failures = [var.edge_cidrs]

  variables {
    edge_cidrs = ["203.0.113.1/0"]
  }
}

run "edges_have_ipv4" {
  command         = plan
  expect_failures = [var.edge_cidrs]

  variables {
    edge_cidrs = ["2001:db8::/32"]
  }
}

run "the_internet_is_no_edge" {
  command         = plan
  expect_failures = [var.edge_cidrs]

  variables {
    edge_cidrs = ["0.0.0.0/0"]
  }
}
