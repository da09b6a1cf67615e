# The provider is mocked: what is checked is what would be asked of AWS, by the published schema.
mock_provider "aws" {}

variables {
  name       = "decode"
  join_url   = "https://control.example.com:8789"
  edge_cidrs = ["203.0.113.0/28", "198.51.100.7/32"]

  join_tokens = {
    eu-central-1 = "skjoin_of_fra"
    us-east-1    = "skjoin_of_iad"
  }

  regions = {
    eu-central-1 = {
      cidr          = "10.1.0.0/16"
      zones         = ["eu-central-1b", "eu-central-1a"]
      instance_type = "g6.xlarge"
      machines      = 2
    }
    us-east-1 = {
      cidr          = "10.2.0.0/16"
      zones         = ["us-east-1a"]
      instance_type = "g6e.2xlarge"
      machines      = 1
      options       = ["--threads", "8"]
    }
  }
}

run "each_region_has_its_own" {
  command = apply

  assert {
    condition     = { for name, group in aws_autoscaling_group.node : name => [group.region, group.desired_capacity] } == { eu-central-1 = ["eu-central-1", 2], us-east-1 = ["us-east-1", 1] }
    error_message = "not one group per region, of the size asked for"
  }

  assert {
    condition     = { for zone, subnet in aws_subnet.this : zone => subnet.cidr_block } == { eu-central-1a = "10.1.0.0/18", eu-central-1b = "10.1.64.0/18", us-east-1a = "10.2.0.0/18" }
    error_message = "not one subnet per zone, of its region's range"
  }

  assert {
    condition     = alltrue([for name, template in aws_launch_template.node : template.region == name && template.instance_type == var.regions[name].instance_type])
    error_message = "machines are not of the type asked for"
  }

  assert {
    condition     = length(module.machine) == 2 && strcontains(base64decode(aws_launch_template.node["us-east-1"].user_data), "SKERRY_OPTIONS=--threads 8")
    error_message = "machines are not told their options"
  }
}

run "only_edges_and_nodes_come_in" {
  command = apply

  assert {
    condition     = toset([for rule in aws_vpc_security_group_ingress_rule.edges : "${rule.region} ${rule.cidr_ipv4} ${rule.from_port}-${rule.to_port}"]) == toset(["eu-central-1 203.0.113.0/28 8790-8791", "eu-central-1 198.51.100.7/32 8790-8791", "us-east-1 203.0.113.0/28 8790-8791", "us-east-1 198.51.100.7/32 8790-8791"])
    error_message = "edges cannot come in, or others can"
  }

  assert {
    condition     = alltrue([for rule in aws_vpc_security_group_ingress_rule.nodes : rule.cidr_ipv4 == null])
    error_message = "what is for nodes of the group is open to addresses"
  }
}

run "a_machine_is_shut_in" {
  command = apply

  assert {
    condition     = alltrue([for template in aws_launch_template.node : template.metadata_options[0].http_tokens == "required"])
    error_message = "the metadata service answers forged requests"
  }

  assert {
    condition     = alltrue(flatten([for template in aws_launch_template.node : [for disk in template.block_device_mappings : disk.ebs[0].encrypted]]))
    error_message = "a disk is not encrypted"
  }

  assert {
    condition     = alltrue([for template in aws_launch_template.node : !strcontains(base64decode(template.user_data), "skjoin_")])
    error_message = "user data holds a join token"
  }

  assert {
    condition     = jsondecode(aws_iam_role_policy.join_token.policy).Statement[0].Action == "ssm:GetParameter" && length(jsondecode(aws_iam_role_policy.join_token.policy).Statement[0].Resource) == 2
    error_message = "machines may do more than read their tokens"
  }
}

run "other_tokens_are_written_when_counted" {
  command = apply

  variables {
    join_tokens_version = 2
  }

  assert {
    condition     = alltrue([for parameter in aws_ssm_parameter.join_token : parameter.value_wo_version == 2])
    error_message = "the tokens of before stay"
  }
}

run "each_region_needs_a_token" {
  command         = plan
  expect_failures = [var.join_tokens]

  variables {
    join_tokens = { eu-central-1 = "skjoin_of_fra" }
  }
}

run "zones_are_the_regions_own" {
  command         = plan
  expect_failures = [var.regions]

  variables {
    join_tokens = { us-east-1 = "skjoin" }
    regions     = { us-east-1 = { cidr = "10.1.0.0/16", zones = ["us-east-2a"], instance_type = "g6.xlarge", machines = 1 } }
  }
}

run "ranges_differ" {
  command         = plan
  expect_failures = [var.regions]

  variables {
    regions = {
      eu-central-1 = { cidr = "10.1.0.0/16", zones = ["eu-central-1a"], instance_type = "g6.xlarge", machines = 1 }
      us-east-1    = { cidr = "10.1.0.0/16", zones = ["us-east-1a"], instance_type = "g6.xlarge", machines = 1 }
    }
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

run "an_image_is_an_ami" {
  command         = plan
  expect_failures = [var.image]

  variables {
    image = "ubuntu"
  }
}
