variable "name" {
  type        = string
  description = "The tenant's name."

  validation {
    condition     = can(regex("^[a-z0-9-]{1,40}$", var.name)) && var.name != "operator"
    error_message = "name must be 1-40 characters of a-z, 0-9 and -, and not operator."
  }
}

variable "quota" {
  type = object({
    max_vms          = optional(number)
    max_vcpus        = optional(number)
    max_memory_mib   = optional(number)
    max_macos_guests = optional(number)
    max_leases       = optional(number)
    max_pools        = optional(number)
  })
  description = "How much the tenant may hold at once. What is left out has no limit; 0 is none at all."
  default     = null

  validation {
    condition     = alltrue([for n in values(coalesce(var.quota, {})) : n == null || coalesce(n, 0) >= 0])
    error_message = "Each limit must be at least 0, or left out for none."
  }
}

variable "default_ttl_seconds" {
  type        = number
  description = "Time to live of VMs that are launched without one."
  default     = null

  validation {
    condition     = var.default_ttl_seconds == null || coalesce(var.default_ttl_seconds, 1) >= 1
    error_message = "default_ttl_seconds must be at least 1."
  }
}

variable "max_ttl_seconds" {
  type        = number
  description = "The longest time to live that a VM may have."
  default     = null

  validation {
    condition     = var.max_ttl_seconds == null || coalesce(var.max_ttl_seconds, 1) >= 1
    error_message = "max_ttl_seconds must be at least 1."
  }
}

variable "macs" {
  type        = set(string)
  description = "Names of the Macs to lease."
  default     = []

  validation {
    condition     = alltrue([for m in var.macs : can(regex("^[A-Za-z0-9._-]+$", m))])
    error_message = "macs must be host names: letters, digits and . _ -."
  }
}

variable "any_macs" {
  type = object({
    selector = map(string)
    count    = optional(number, 1)
  })
  description = "So many Macs more, whichever with all of these labels are free."
  default     = null

  validation {
    condition     = var.any_macs == null || (length(try(var.any_macs.selector, {})) > 0 && try(var.any_macs.count >= 1 && var.any_macs.count <= 64, false))
    error_message = "any_macs needs a selector of at least one label, and a count from 1 to 64."
  }
}

variable "lease_duration" {
  type        = string
  description = "How long each lease lasts, and is renewed for. Apple's licence asks for 24 hours at least."
  default     = "7d"

  validation {
    condition     = can(regex("^([0-9]+[dhm])+$", var.lease_duration))
    error_message = "lease_duration must be a length of time such as 24h or 7d."
  }
}

variable "auto_renew" {
  type        = bool
  description = "Whether the leases go on at their end."
  default     = true
}

variable "drain" {
  type        = bool
  description = "Whether a lease may wait until the VMs of others are off its Mac."
  default     = true
}

variable "pools" {
  type = map(object({
    image         = string
    min_ready     = optional(number, 1)
    max_total     = optional(number)
    vcpus         = optional(number)
    memory_mib    = optional(number)
    disk_size_gib = optional(number)
    nodes         = optional(set(string))
  }))
  description = "Warm pools on the leased Macs, by what their names begin with."
  default     = {}

  validation {
    condition     = alltrue([for name, p in var.pools : can(regex("^[a-z0-9-]{1,29}$", name)) && p.min_ready >= 0 && p.min_ready <= 32])
    error_message = "Each pool's name must be 1-29 characters of a-z, 0-9 and -, and its min_ready from 0 to 32."
  }
}
