variable "regions" {
  type = map(object({
    iata      = optional(string)
    latitude  = optional(number)
    longitude = optional(number)
    residency = optional(string, "global")
    draining  = optional(bool, false)

    pools = map(object({
      role                 = string
      model                = optional(string)
      runner               = optional(string, "numba")
      replicas             = optional(number)
      min_replicas         = optional(number)
      max_replicas         = optional(number)
      target_queue_seconds = optional(number)
      target_ttft_seconds  = optional(number)
      target_itl_seconds   = optional(number)
      idle_seconds         = optional(number)
      launcher             = optional(string, "local")
      threads              = optional(number)
      memory               = optional(string)
      gpus                 = optional(number, 0)
      kv_blocks            = optional(number)
      streams              = optional(number)
      step_tokens          = optional(number)
      draft_tokens         = optional(number)
      file_tier            = optional(string)
      pin_share            = optional(number)
      weights              = optional(string)
      kv                   = optional(string)
      parallel             = optional(object({ tensor = optional(number, 1), pipeline = optional(number, 1), stages = optional(list(string), []) }))
      deletion_protection  = optional(bool, false)
    }))

    edges = optional(map(object({
      host       = optional(string, "127.0.0.1")
      port       = optional(number, 0)
      addresses  = optional(list(string), [])
      hosts      = optional(list(string), [])
      tls_cert   = optional(string)
      tls_key    = optional(string)
      public_url = optional(string)
      placement  = optional(string, "cost")
      draining   = optional(bool, false)
    })), { edge = {} })
  }))
  description = "The whole platform, by region: where it is (an airport's code, or coordinates), its pools of nodes and its edges, both by name."

  validation {
    condition = alltrue([
      for region in values(var.regions) :
      (region.iata != null) != (region.latitude != null) && (region.latitude != null) == (region.longitude != null)
    ])
    error_message = "Each region needs either iata, or latitude and longitude."
  }

  validation {
    condition     = alltrue(flatten([for region in values(var.regions) : [for pool in values(region.pools) : contains(["prefill", "decode", "hybrid"], pool.role)]]))
    error_message = "Each pool's role must be prefill, decode or hybrid."
  }

  validation {
    condition = alltrue(flatten([
      for region in values(var.regions) : [
        for pool in values(region.pools) : pool.max_replicas == null ? pool.min_replicas == null : pool.replicas == null
      ]
    ]))
    error_message = "A pool has either replicas, or max_replicas and perhaps min_replicas."
  }

  validation {
    condition = alltrue([
      for region in values(var.regions) : length(region.edges) == 0 || length(region.pools) == 0 || anytrue([
        for pool in values(region.pools) : pool.role != "prefill"
      ])
    ])
    error_message = "A region with pools needs one that decodes (role decode or hybrid)."
  }
}

variable "deployments" {
  type = map(object({
    model          = string
    pools          = optional(set(string))
    system_prompts = optional(list(string), [])
  }))
  description = "Models, by the name of their deployment: each is served by the pools of these names in all regions, or by every pool that has no model of its own."
  default     = {}
  nullable    = false

  validation {
    condition = alltrue(flatten([
      for deployment in values(var.deployments) : [
        for name in coalesce(deployment.pools, []) : anytrue([for region in values(var.regions) : contains(keys(region.pools), name)])
      ]
    ]))
    error_message = "A deployment names a pool that no region has."
  }
}

variable "tokens" {
  type = map(object({
    role       = optional(string)
    scopes     = optional(set(string))
    models     = optional(set(string))
    per_day    = optional(number)
    per_month  = optional(number)
    expires_at = optional(string)
    rotate     = optional(string, "")
  }))
  description = "API tokens, by name: its role (viewer, developer, operator), scopes (of run, read, steer, metrics), models, caps in US$ and end, and any text that makes a new one when it changes. Their secrets are kept in the state."
  default     = {}
  nullable    = false

  validation {
    condition     = alltrue(flatten([for token in values(var.tokens) : [for scope in coalesce(token.scopes, []) : contains(["run", "read", "steer", "metrics", "admin"], scope)]]))
    error_message = "scopes are run, read, steer and metrics."
  }
}

variable "dns" {
  type = object({
    zone    = string
    names   = optional(list(string), ["ai"])
    contact = optional(string, "hostmaster")

    nameservers = list(object({
      name      = string
      addresses = optional(list(string), [])
    }))

    nets = optional(map(object({
      region      = optional(string)
      coordinates = optional(list(number))
      residency   = optional(string)
    })), {})

    records = optional(list(object({
      name   = string
      type   = string
      ttl    = optional(number, 300)
      values = list(string)
    })), [])
  })
  description = "The zone that `skerry dns --zone` answers for, whose names lead clients to the nearest region; nets are by their range, such as 203.0.113.0/24. None by default."
  default     = null

  validation {
    condition     = var.dns == null ? true : length(var.dns.nameservers) > 0
    error_message = "A zone needs a name server."
  }

  validation {
    condition = var.dns == null ? true : alltrue([
      for net in values(var.dns.nets) : net.region == null ? true : contains(keys(var.regions), net.region)
    ])
    error_message = "A net names a region that is not there."
  }
}

variable "routing" {
  type = object({
    emulate = optional(object({ rtt = optional(string, "links") }))
    steer = optional(object({
      policy        = string
      margin        = optional(number, 0.03)
      drain_seconds = optional(number, 4)
    }))
    router = optional(object({ candidates = optional(string, "indexed") }), {})
  })
  description = "How requests find their way: steer sends clients on who are nearer to another edge, router says how edges choose nodes, emulate makes regions of one machine as far apart as they are. As where nothing is said by default."
  default     = null

  validation {
    condition     = var.routing == null ? true : var.routing.steer == null ? true : contains(["advise", "redirect"], var.routing.steer.policy)
    error_message = "steer's policy is advise or redirect."
  }
}

variable "wait_for_ready" {
  type        = bool
  description = "Whether apply waits until all of it runs."
  default     = true
  nullable    = false
}
