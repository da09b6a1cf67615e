resource "aws_vpc" "this" {
  for_each = var.regions

  region               = each.key
  cidr_block           = each.value.cidr
  enable_dns_support   = true
  enable_dns_hostnames = true
  tags                 = local.tags
}

resource "aws_internet_gateway" "this" {
  for_each = var.regions

  region = each.key
  vpc_id = aws_vpc.this[each.key].id
  tags   = local.tags
}

resource "aws_subnet" "this" {
  for_each = local.subnets

  region                  = each.value.region
  vpc_id                  = aws_vpc.this[each.value.region].id
  cidr_block              = each.value.cidr
  availability_zone       = each.key
  map_public_ip_on_launch = true
  tags                    = local.tags
}

resource "aws_route_table" "this" {
  for_each = var.regions

  region = each.key
  vpc_id = aws_vpc.this[each.key].id
  tags   = local.tags
}

resource "aws_route" "out" {
  for_each = var.regions

  region                 = each.key
  route_table_id         = aws_route_table.this[each.key].id
  destination_cidr_block = "0.0.0.0/0"
  gateway_id             = aws_internet_gateway.this[each.key].id
}

resource "aws_route_table_association" "this" {
  for_each = local.subnets

  region         = each.value.region
  route_table_id = aws_route_table.this[each.value.region].id
  subnet_id      = aws_subnet.this[each.key].id
}

resource "aws_security_group" "node" {
  for_each = var.regions

  region      = each.key
  name        = "${var.name}-node"
  description = "Skerry nodes: streams of edges, KV of each other"
  vpc_id      = aws_vpc.this[each.key].id
  tags        = local.tags
}

resource "aws_vpc_security_group_ingress_rule" "edges" {
  for_each = local.sources

  region            = each.value.region
  security_group_id = aws_security_group.node[each.value.region].id
  description       = "Streams of edges"
  cidr_ipv4         = each.value.cidr
  ip_protocol       = "tcp"
  from_port         = var.ports.from
  to_port           = var.ports.to
}

resource "aws_vpc_security_group_ingress_rule" "nodes" {
  for_each = var.regions

  region                       = each.key
  security_group_id            = aws_security_group.node[each.key].id
  description                  = "KV of other nodes of the region"
  referenced_security_group_id = aws_security_group.node[each.key].id
  ip_protocol                  = "tcp"
  from_port                    = var.ports.from
  to_port                      = var.ports.to
}

resource "aws_vpc_security_group_egress_rule" "out" {
  for_each = var.regions

  region            = each.key
  security_group_id = aws_security_group.node[each.key].id
  description       = "The control plane, packages, models"
  cidr_ipv4         = "0.0.0.0/0"
  ip_protocol       = "-1"
}
