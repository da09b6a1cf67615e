variable "model" {
  type        = string
  description = "What all regions serve: an id or alias of `skerry models list`."
  default     = "@cf/huggingfacetb/smollm2-135m-instruct"
  nullable    = false
}

variable "runner" {
  type        = string
  description = "What computes; toy knows no language, only arithmetic, and needs least of a machine."
  default     = "numba"
  nullable    = false

  validation {
    condition     = contains(["numba", "torch", "torch-deterministic", "jax", "toy"], var.runner)
    error_message = "runner must be numba, torch, torch-deterministic, jax or toy."
  }
}

variable "regions" {
  type        = map(string)
  description = "Regions by name, each with its airport's code."
  default     = { fra = "FRA", iad = "IAD", nrt = "NRT" }
  nullable    = false

  validation {
    condition     = alltrue([for code in values(var.regions) : can(regex("^[A-Z]{3}$", code))])
    error_message = "Each region's airport must be three capital letters."
  }
}

variable "decode_replicas" {
  type        = number
  description = "Nodes that decode, in each region."
  default     = 1
  nullable    = false

  validation {
    condition     = var.decode_replicas >= 1 && var.decode_replicas <= 8
    error_message = "decode_replicas must be from 1 to 8."
  }
}
