variable "account_id" {
  type        = string
  description = "Cloudflare account id."

  validation {
    condition     = can(regex("^[0-9a-f]{32}$", var.account_id))
    error_message = "account_id must be 32 hexadecimal digits."
  }
}

variable "zone_id" {
  type        = string
  description = "Id of the zone that hostname lies in."

  validation {
    condition     = can(regex("^[0-9a-f]{32}$", var.zone_id))
    error_message = "zone_id must be 32 hexadecimal digits."
  }
}

variable "hostname" {
  type        = string
  description = "The name that clients call: ai.example.com."

  validation {
    condition     = can(regex("^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\\.)+[a-z]{2,63}$", var.hostname))
    error_message = "hostname must be a whole domain name, in lower case."
  }
}

variable "regions" {
  type = map(object({
    edges     = map(object({ address = string, weight = optional(number, 1) }))
    latitude  = number
    longitude = number
    areas     = optional(set(string), [])
    countries = optional(set(string), [])
  }))
  description = "By region: its edges (by name: address, and share of the region's requests from 0 to 1), where it is, and what it serves first: areas (Cloudflare's codes, such as WEU) and countries (ISO 3166, such as DE)."

  validation {
    condition     = length(var.regions) > 0 && alltrue([for region in values(var.regions) : length(region.edges) > 0])
    error_message = "There must be a region, and each must have an edge."
  }

  validation {
    condition = alltrue(flatten([
      for region in values(var.regions) : [for edge in values(region.edges) : edge.weight >= 0 && edge.weight <= 1]
    ]))
    error_message = "Each edge's weight must be from 0 to 1."
  }

  validation {
    condition = alltrue([
      for region in values(var.regions) : abs(region.latitude) <= 90 && abs(region.longitude) <= 180
    ])
    error_message = "latitude must be from -90 to 90, longitude from -180 to 180."
  }

  validation {
    condition = alltrue(flatten([
      for region in values(var.regions) : [
        for area in region.areas : contains(["WNAM", "ENAM", "WEU", "EEU", "NSAM", "SSAM", "OC", "ME", "NAF", "SAF", "SAS", "SEAS", "NEAS"], area)
      ]
    ]))
    error_message = "areas are WNAM, ENAM, WEU, EEU, NSAM, SSAM, OC, ME, NAF, SAF, SAS, SEAS and NEAS."
  }

  validation {
    condition = alltrue(flatten([
      for region in values(var.regions) : [for country in region.countries : can(regex("^[A-Z]{2}$", country))]
    ]))
    error_message = "Each country must be two capital letters."
  }
}

variable "fallback" {
  type        = string
  description = "The region that is answered when no region is healthy."

  validation {
    condition     = contains(keys(var.regions), var.fallback)
    error_message = "fallback must be one of regions."
  }
}

variable "proxied" {
  type        = bool
  description = "Whether requests go through Cloudflare. Without, it answers DNS only, and edges hold the certificate."
  default     = false
  nullable    = false
}

variable "ttl" {
  type        = number
  description = "Seconds for which clients keep an answer; of no effect when proxied."
  default     = 30
  nullable    = false

  validation {
    condition     = var.ttl >= 30 && var.ttl <= 3600
    error_message = "ttl must be from 30 to 3600 seconds."
  }
}

variable "port" {
  type        = number
  description = "Port of the edges."
  default     = 443
  nullable    = false

  validation {
    condition     = var.port >= 1 && var.port <= 65535
    error_message = "port must be from 1 to 65535."
  }
}
