terraform {
  required_version = ">= 1.11"

  required_providers {
    skerry = {
      source  = "registry.skerry.dev/platform/skerry"
      version = "~> 0.1"
    }
  }
}
