variable "join_url" {
  type        = string
  description = "Where machines join: https://HOST:PORT of `skerry control --join-host`."

  validation {
    condition     = can(regex("^https://([A-Za-z0-9.-]+|\\[[0-9a-f:]+\\]):[0-9]{1,5}$", var.join_url))
    error_message = "join_url must be https://HOST:PORT."
  }
}

variable "kind" {
  type        = string
  description = "What the machine is: node or edge."
  default     = "node"
  nullable    = false

  validation {
    condition     = contains(["node", "edge"], var.kind)
    error_message = "kind must be node or edge."
  }
}

variable "token_script" {
  type        = string
  description = "A shell script that prints the join token. It runs once, as root, when the machine first starts; user data can be read by every process of a machine, so it must not hold the token itself."

  validation {
    condition     = startswith(var.token_script, "#!/")
    error_message = "token_script must begin with #!/ and the path of an interpreter."
  }
}

variable "options" {
  type        = list(string)
  description = "Further options of `skerry node` or `skerry edge`, such as [\"--threads\", \"8\"]."
  default     = []
  nullable    = false

  validation {
    condition     = alltrue([for option in var.options : can(regex("^[A-Za-z0-9@/_.:,=+-]+$", option))])
    error_message = "Each option must be one word of letters, digits and @/_.:,=+-."
  }
}

variable "package" {
  type        = string
  description = "What pip installs: skerry[platform,torch]==VERSION, or the URL of a wheel."
  default     = "skerry[platform,torch]"
  nullable    = false

  validation {
    condition     = can(regex("^[^\\s-]\\S*( @ \\S+)?$", var.package))
    error_message = "package must be one requirement, as pip takes it."
  }
}
