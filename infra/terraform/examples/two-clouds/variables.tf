variable "model" {
  type        = string
  description = "What is served: an id or alias of `skerry models list`."
  default     = "@cf/huggingfacetb/smollm2-135m-instruct"
  nullable    = false
}

variable "join_url" {
  type        = string
  description = "Where machines join: https://HOST:PORT of `skerry control --join-host`, reached from both clouds."
}

variable "join_tokens" {
  type        = map(string)
  description = "By region (fra, ams, iad): what machines prove that they may join its pool `gpu`, of `skerry control token create --pool REGION-gpu`. Not needed by a first apply that makes the pools."
  default     = {}
  sensitive   = true
  ephemeral   = true
  nullable    = false
}

variable "join_tokens_version" {
  type        = number
  description = "Count it up when join_tokens are others, also when they are the first: Terraform cannot see that by itself."
  default     = 1
  nullable    = false
}

variable "edge_cidrs" {
  type        = set(string)
  description = "Private IPv4 ranges of the edges, reached from both clouds' networks."
}

variable "google_project" {
  type        = string
  description = "Google Cloud project id."
}

variable "machines" {
  type        = map(number)
  description = "By region: how many GPU machines. None, until there are join tokens."
  default     = { fra = 0, ams = 0, iad = 0 }
  nullable    = false

  validation {
    condition     = toset(keys(var.machines)) == toset(["fra", "ams", "iad"])
    error_message = "machines must name fra, ams and iad."
  }
}
