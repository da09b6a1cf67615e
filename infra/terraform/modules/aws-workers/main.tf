locals {
  tags = merge({ Name = var.name, "skerry:workers" = var.name }, var.tags)

  # One subnet per zone: the range's quarters, in the order of the zones' names.
  subnets = merge([
    for region, wanted in var.regions : {
      for index, zone in sort(wanted.zones) : zone => {
        region = region
        cidr   = cidrsubnet(wanted.cidr, 2, index)
      }
    }
  ]...)

  sources = merge([
    for region in keys(var.regions) : {
      for cidr in var.edge_cidrs : "${region} ${cidr}" => { region = region, cidr = cidr }
    }
  ]...)
}

module "machine" {
  source   = "../machine"
  for_each = var.regions

  join_url     = var.join_url
  options      = each.value.options
  package      = var.package
  token_script = <<-EOT
    #!/bin/sh
    exec aws ssm get-parameter --region ${each.key} --name ${local.parameter} --with-decryption --query Parameter.Value --output text
  EOT
}
