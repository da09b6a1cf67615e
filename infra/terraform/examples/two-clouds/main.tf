# Endpoint and token are those that `skerry control` wrote on this machine.
provider "skerry" {}

# Of each resource its own region counts; this one is only where the provider asks for what has none.
provider "aws" {
  region = "eu-central-1"
}

provider "google" {
  project = var.google_project
}

locals {
  airports = { fra = "FRA", ams = "AMS", iad = "IAD" }
}

# What is to run, in both clouds. Nodes come from machines that join: none is started beside the control plane.
module "platform" {
  source = "../../modules/platform"

  regions = {
    for name, airport in local.airports : name => {
      iata  = airport
      pools = { gpu = { role = "hybrid", runner = "torch", replicas = 0 } }
    }
  }

  deployments = { chat = { model = var.model } }

  # Before machines have joined nothing can be ready.
  wait_for_ready = false
}

module "aws" {
  source = "../../modules/aws-workers"

  name                = "skerry-gpu"
  join_url            = var.join_url
  join_tokens_version = var.join_tokens_version
  edge_cidrs          = var.edge_cidrs

  join_tokens = {
    eu-central-1 = lookup(var.join_tokens, "fra", "none yet")
    us-east-1    = lookup(var.join_tokens, "iad", "none yet")
  }

  regions = {
    eu-central-1 = {
      cidr          = "10.16.0.0/20"
      zones         = ["eu-central-1a", "eu-central-1b"]
      instance_type = "g6.xlarge"
      machines      = var.machines["fra"]
    }
    us-east-1 = {
      cidr          = "10.16.16.0/20"
      zones         = ["us-east-1a", "us-east-1b"]
      instance_type = "g6.xlarge"
      machines      = var.machines["iad"]
    }
  }
}

module "google" {
  source = "../../modules/google-workers"

  name                = "skerry-gpu"
  project             = var.google_project
  join_url            = var.join_url
  edge_cidrs          = var.edge_cidrs
  join_tokens         = { europe-west4 = lookup(var.join_tokens, "ams", "none yet") }
  join_tokens_version = var.join_tokens_version

  regions = {
    europe-west4 = {
      cidr         = "10.16.32.0/20"
      zones        = ["europe-west4-a", "europe-west4-b"]
      machine_type = "g2-standard-8"
      machines     = var.machines["ams"]
    }
  }
}
