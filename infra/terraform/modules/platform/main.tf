locals {
  pools = merge([
    for region, wanted in var.regions : {
      for name, pool in wanted.pools : "${region}-${name}" => merge(pool, { name = name, region = region })
    }
  ]...)

  edges = merge([
    for region, wanted in var.regions : {
      for name, edge in wanted.edges : "${region}-${name}" => merge(edge, { region = region })
    }
  ]...)

  deployed = {
    for name, deployment in var.deployments : name => toset([
      for id, pool in local.pools : id
      if deployment.pools == null ? pool.model == null : contains(deployment.pools, pool.name)
    ])
  }
}

resource "skerry_region" "this" {
  for_each = var.regions

  name      = each.key
  iata      = each.value.iata
  latitude  = each.value.latitude
  longitude = each.value.longitude
  residency = each.value.residency
  draining  = each.value.draining
}

resource "skerry_pool" "this" {
  for_each = local.pools

  name                 = each.value.name
  region               = skerry_region.this[each.value.region].name
  role                 = each.value.role
  model                = each.value.model
  runner               = each.value.runner
  replicas             = each.value.replicas
  min_replicas         = each.value.min_replicas
  max_replicas         = each.value.max_replicas
  target_queue_seconds = each.value.target_queue_seconds
  target_ttft_seconds  = each.value.target_ttft_seconds
  target_itl_seconds   = each.value.target_itl_seconds
  idle_seconds         = each.value.idle_seconds
  launcher             = each.value.launcher
  threads              = each.value.threads
  memory               = each.value.memory
  gpus                 = each.value.gpus
  kv_blocks            = each.value.kv_blocks
  streams              = each.value.streams
  step_tokens          = each.value.step_tokens
  draft_tokens         = each.value.draft_tokens
  file_tier            = each.value.file_tier
  pin_share            = each.value.pin_share
  weights              = each.value.weights
  kv                   = each.value.kv
  parallel             = each.value.parallel
  deletion_protection  = each.value.deletion_protection
  wait_for_ready       = var.wait_for_ready

  # A pool that is taken away must leave its deployment before it goes, not after.
  lifecycle {
    create_before_destroy = true
  }
}

resource "skerry_deployment" "this" {
  for_each = var.deployments

  name           = each.key
  model          = each.value.model
  pools          = [for id in local.deployed[each.key] : skerry_pool.this[id].id]
  system_prompts = each.value.system_prompts
  wait_for_ready = var.wait_for_ready

  lifecycle {
    precondition {
      condition     = length(local.deployed[each.key]) > 0
      error_message = "Deployment ${each.key} has no pool: each pool of the platform has a model of its own."
    }
  }
}

# Edges come last and go first: they have models to offer only while there are pools.
resource "skerry_edge_node" "this" {
  for_each = local.edges

  name           = each.key
  region         = skerry_region.this[each.value.region].name
  host           = each.value.host
  port           = each.value.port
  addresses      = each.value.addresses
  hosts          = each.value.hosts
  tls_cert       = each.value.tls_cert
  tls_key        = each.value.tls_key
  public_url     = each.value.public_url
  placement      = each.value.placement
  draining       = each.value.draining
  wait_for_ready = var.wait_for_ready

  depends_on = [skerry_pool.this, skerry_deployment.this]
}

resource "skerry_api_token" "this" {
  for_each = var.tokens

  name                = each.key
  role                = each.value.role
  scopes              = each.value.scopes
  models              = each.value.models
  per_day             = each.value.per_day
  per_month           = each.value.per_month
  expires_at          = each.value.expires_at
  rotate_when_changed = { rotate = each.value.rotate }
}

resource "skerry_routing" "this" {
  count = var.routing == null ? 0 : 1

  emulate = var.routing.emulate
  steer   = var.routing.steer
  router  = var.routing.router
}

resource "skerry_dns_zone" "this" {
  count = var.dns == null ? 0 : 1

  name    = var.dns.zone
  names   = var.dns.names
  contact = var.dns.contact

  dynamic "nameservers" {
    for_each = var.dns.nameservers

    content {
      name      = nameservers.value.name
      addresses = nameservers.value.addresses
    }
  }

  dynamic "nets" {
    for_each = var.dns.nets

    content {
      net         = nets.key
      region      = nets.value.region
      coordinates = nets.value.coordinates
      residency   = nets.value.residency
    }
  }

  depends_on = [skerry_region.this]
}

resource "skerry_dns_record" "this" {
  for_each = { for record in try(var.dns.records, []) : "${record.name} ${record.type}" => record }

  zone   = skerry_dns_zone.this[0].name
  name   = each.value.name
  type   = each.value.type
  ttl    = each.value.ttl
  values = each.value.values
}
