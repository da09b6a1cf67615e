variable "name" {
  type        = string
  description = "Prefix of all names: 3 to 24 lower-case letters, digits and dashes."

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,22}[a-z0-9]$", var.name))
    error_message = "name must be 3 to 24 lower-case letters, digits and dashes, beginning with a letter."
  }
}

variable "project" {
  type        = string
  description = "Google Cloud project id."

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{4,28}[a-z0-9]$", var.project))
    error_message = "project must be a project id: 6 to 30 lower-case letters, digits and dashes."
  }
}

variable "join_url" {
  type        = string
  description = "Where machines join: https://HOST:PORT of `skerry control --join-host`."
}

variable "join_tokens" {
  type        = map(string)
  description = "By region: what machines prove that they may join, for a pool or region of the platform (`max_uses` machines, until it expires). In no state and no plan; Secret Manager keeps it."
  sensitive   = true
  ephemeral   = true

  validation {
    condition     = toset(keys(var.join_tokens)) == toset(keys(var.regions))
    error_message = "join_tokens needs one for each of regions, and no other."
  }
}

variable "join_tokens_version" {
  type        = number
  description = "Count it up when join_tokens are others: Terraform cannot see that by itself."
  default     = 1
  nullable    = false
}

variable "regions" {
  type = map(object({
    cidr         = string
    zones        = set(string)
    machine_type = string
    machines     = number
    accelerator  = optional(object({ type = string, count = number }))
    options      = optional(list(string), [])
  }))
  description = "By Google Cloud region: the subnet's IPv4 range (/16 to /28), zones, the machines' type and how many of them, an accelerator where the type (N1) brings none, and further options of `skerry node` there."

  validation {
    condition     = length(var.regions) > 0
    error_message = "regions must name at least one."
  }

  validation {
    condition = alltrue([
      for region in values(var.regions) :
      can(cidrhost(region.cidr, 0)) && can(regex("/(1[6-9]|2[0-8])$", region.cidr))
    ])
    error_message = "Each region's cidr must be an IPv4 range between /16 and /28."
  }

  validation {
    condition     = length(distinct([for region in values(var.regions) : region.cidr])) == length(var.regions)
    error_message = "Each region needs a cidr of its own."
  }

  validation {
    condition = alltrue([
      for name, region in var.regions :
      length(region.zones) > 0 && alltrue([for zone in region.zones : startswith(zone, "${name}-")])
    ])
    error_message = "Each region needs at least one of its own zones, such as europe-west4-a."
  }

  validation {
    condition = alltrue([
      for region in values(var.regions) : region.machines >= 0 && region.machines <= 1000 && floor(region.machines) == region.machines
    ])
    error_message = "machines must be a whole number from 0 to 1000."
  }
}

variable "edge_cidrs" {
  type        = set(string)
  description = "IPv4 ranges of the edges, which open connections to the nodes."

  validation {
    condition     = alltrue([for cidr in var.edge_cidrs : can(cidrhost(cidr, 0)) && can(regex("^[0-9.]+/([1-9]|[12][0-9]|3[0-2])$", cidr))])
    error_message = "edge_cidrs must be IPv4 ranges, and not the whole Internet."
  }
}

variable "ports" {
  type        = object({ from = number, to = number })
  description = "Ports at which nodes take streams of edges, and KV of each other: those of `skerry node --join`, unless options say others."
  default     = { from = 8790, to = 8791 }
  nullable    = false

  validation {
    condition     = var.ports.from >= 1024 && var.ports.from <= var.ports.to && var.ports.to <= 65535
    error_message = "ports must be a range within 1024 to 65535."
  }
}

variable "image" {
  type        = string
  description = "Image or family: with cloud-init, the NVIDIA driver and Python 3.11 or newer."
  default     = "projects/ubuntu-os-accelerator-images/global/images/family/ubuntu-accelerator-2404-amd64-with-nvidia-580"
  nullable    = false
}

variable "disk_gib" {
  type        = number
  description = "Size of each machine's disk, in GiB: system, Python packages, models and their caches."
  default     = 200
  nullable    = false

  validation {
    condition     = var.disk_gib >= 50 && var.disk_gib <= 65536
    error_message = "disk_gib must be from 50 to 65536."
  }
}

variable "disk_type" {
  type        = string
  description = "Type of that disk; which ones there are depends on the machine's type."
  default     = "pd-balanced"
  nullable    = false
}

variable "package" {
  type        = string
  description = "What pip installs on the machines: skerry[platform,torch]==VERSION, or the URL of a wheel."
  default     = "skerry[platform,torch]"
  nullable    = false
}

variable "labels" {
  type        = map(string)
  description = "Labels of everything that can have some."
  default     = {}
  nullable    = false
}
