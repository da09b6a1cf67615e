# Endpoint and token are those that `skerry up` wrote on this machine.
provider "skerry" {}

module "platform" {
  source = "../../modules/platform"

  regions = {
    for name, airport in var.regions : name => {
      iata = airport

      # One core and a small cache each: all of it runs on one machine.
      pools = {
        prefill = { role = "prefill", runner = var.runner, replicas = 1, threads = 1, kv_blocks = 64, file_tier = "none" }
        decode  = { role = "decode", runner = var.runner, replicas = var.decode_replicas, threads = 1, kv_blocks = 64, file_tier = "none" }
      }
    }
  }

  deployments = { chat = { model = var.model } }
}
