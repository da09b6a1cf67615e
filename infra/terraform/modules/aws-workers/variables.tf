variable "name" {
  type        = string
  description = "Prefix of all names: 3 to 24 lower-case letters, digits and dashes."

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,22}[a-z0-9]$", var.name))
    error_message = "name must be 3 to 24 lower-case letters, digits and dashes, beginning with a letter."
  }
}

variable "join_url" {
  type        = string
  description = "Where machines join: https://HOST:PORT of `skerry control --join-host`."
}

variable "join_tokens" {
  type        = map(string)
  description = "By region: what machines prove that they may join, for a pool or region of the platform (`max_uses` machines, until it expires). In no state and no plan; SSM Parameter Store keeps it."
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
    cidr          = string
    zones         = set(string)
    instance_type = string
    machines      = number
    options       = optional(list(string), [])
  }))
  description = "By AWS region: the network's IPv4 range (/16 to /22), availability zones, the machines' type and how many of them, and further options of `skerry node` there."

  validation {
    condition     = length(var.regions) > 0
    error_message = "regions must name at least one."
  }

  validation {
    condition = alltrue([
      for region in values(var.regions) :
      can(cidrhost(region.cidr, 0)) && can(regex("/(1[6-9]|2[0-2])$", region.cidr))
    ])
    error_message = "Each region's cidr must be an IPv4 range between /16 and /22."
  }

  validation {
    condition     = length(distinct([for region in values(var.regions) : region.cidr])) == length(var.regions)
    error_message = "Each region needs a cidr of its own."
  }

  validation {
    condition = alltrue([
      for name, region in var.regions :
      length(region.zones) > 0 && length(region.zones) <= 4 && alltrue([for zone in region.zones : startswith(zone, name)])
    ])
    error_message = "Each region needs one to four of its own zones, such as eu-central-1a."
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
  description = "AMI id, or `resolve:ssm:` and a parameter that holds one: with cloud-init, the NVIDIA driver, the AWS CLI and Python 3.11 or newer."
  default     = "resolve:ssm:/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id"
  nullable    = false

  validation {
    condition     = can(regex("^(ami-[0-9a-f]+|resolve:ssm:/.+)$", var.image))
    error_message = "image must be an AMI id or begin with resolve:ssm:/."
  }
}

variable "disk_gib" {
  type        = number
  description = "Size of each machine's encrypted disk, in GiB: system, Python packages, models and their caches."
  default     = 200
  nullable    = false

  validation {
    condition     = var.disk_gib >= 50 && var.disk_gib <= 16384
    error_message = "disk_gib must be from 50 to 16384."
  }
}

variable "package" {
  type        = string
  description = "What pip installs on the machines: skerry[platform,torch]==VERSION, or the URL of a wheel."
  default     = "skerry[platform,torch]"
  nullable    = false
}

variable "tags" {
  type        = map(string)
  description = "Tags of everything that can have some."
  default     = {}
  nullable    = false
}
