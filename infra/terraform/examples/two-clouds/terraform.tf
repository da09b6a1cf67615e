terraform {
  required_version = ">= 1.11"

  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 6.0, < 7.0"
    }
    google = {
      source  = "hashicorp/google"
      version = ">= 8.0, < 9.0"
    }
    skerry = {
      source  = "registry.skerry.dev/platform/skerry"
      version = "~> 0.1"
    }
  }
}
