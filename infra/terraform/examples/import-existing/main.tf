# Endpoint and token are those that `skerry up` wrote on this machine.
provider "skerry" {}

# What somebody made over the API, or another configuration let go of. `terraform plan` shows what would change.
import {
  to = skerry_region.this
  id = var.region
}

import {
  to = skerry_pool.decode
  id = provider::skerry::pool_id(var.region, "decode")
}

resource "skerry_region" "this" {
  name = var.region
  iata = "FRA"
}

resource "skerry_pool" "decode" {
  name     = "decode"
  region   = skerry_region.this.name
  role     = "decode"
  replicas = 1
}
