locals {
  # Which regions serve an area or a country first; more than one share it.
  areas     = toset(flatten([for region in values(var.regions) : region.areas]))
  countries = toset(flatten([for region in values(var.regions) : region.countries]))
  pools     = { for name, pool in cloudflare_load_balancer_pool.region : name => pool.id }

  # All of them, the fallback last: what follows where nothing else is said.
  order = concat([for name in sort(keys(var.regions)) : name if name != var.fallback], [var.fallback])
}

resource "cloudflare_load_balancer_monitor" "edge" {
  account_id     = var.account_id
  description    = "Edges of ${var.hostname}"
  type           = "https"
  method         = "GET"
  path           = "/healthz"
  port           = var.port
  expected_codes = "200"
  interval       = 60
  timeout        = 5
  retries        = 2

  header = {
    Host = [var.hostname]
  }
}

resource "cloudflare_load_balancer_pool" "region" {
  for_each = var.regions

  account_id      = var.account_id
  name            = "${replace(var.hostname, ".", "-")}-${each.key}"
  description     = "Edges of ${each.key}"
  latitude        = each.value.latitude
  longitude       = each.value.longitude
  monitor         = cloudflare_load_balancer_monitor.edge.id
  minimum_origins = 1

  origins = [
    for name in sort(keys(each.value.edges)) : {
      name    = name
      address = each.value.edges[name].address
      weight  = each.value.edges[name].weight
      enabled = true
    }
  ]
}

resource "cloudflare_load_balancer" "geo" {
  zone_id         = var.zone_id
  name            = var.hostname
  description     = "Clients go to the nearest healthy region"
  proxied         = var.proxied
  ttl             = var.proxied ? null : var.ttl
  default_pools   = [for name in local.order : local.pools[name]]
  fallback_pool   = local.pools[var.fallback]
  steering_policy = length(local.areas) + length(local.countries) > 0 ? "geo" : "proximity"

  region_pools = {
    for area in local.areas :
    area => [for name in local.order : local.pools[name] if contains(var.regions[name].areas, area)]
  }

  country_pools = {
    for country in local.countries :
    country => [for name in local.order : local.pools[name] if contains(var.regions[name].countries, country)]
  }

  # Of resolvers that send it, the client's own net counts, as it does for `skerry dns`.
  location_strategy = {
    mode       = "resolver_ip"
    prefer_ecs = "always"
  }
}
