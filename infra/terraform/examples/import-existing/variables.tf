variable "region" {
  type        = string
  description = "Name of a region that is there already."
  default     = "fra"
  nullable    = false

  validation {
    condition     = can(regex("^[a-z0-9][a-z0-9-]*$", var.region))
    error_message = "region must be lower-case letters, digits and dashes."
  }
}
