variable "name" {
  type        = string
  description = "What the pool's name begins with; the rest is made, so that a pool of another image can be filled before the old one goes."

  validation {
    condition     = can(regex("^[a-z0-9-]{1,29}$", var.name))
    error_message = "name must be 1-29 characters of a-z, 0-9 and -."
  }
}

variable "image" {
  type        = string
  description = "Name of the catalog image that its VMs boot."

  validation {
    condition     = can(regex("^[A-Za-z0-9._-]+$", var.image))
    error_message = "image must be a catalog name: letters, digits and . _ -."
  }
}

variable "image_path" {
  type        = string
  description = "Where the hosts find the image. When given, the image is added to the catalog; otherwise it has to be there."
  default     = null

  validation {
    condition     = var.image_path == null || length(coalesce(var.image_path, "x")) <= 1024
    error_message = "image_path must have at most 1024 characters."
  }
}

variable "guest_os" {
  type        = string
  description = "Guest operating system of an image that is added: linux or macos."
  default     = "linux"

  validation {
    condition     = contains(["linux", "macos"], var.guest_os)
    error_message = "guest_os must be linux or macos."
  }
}

variable "has_agent" {
  type        = bool
  description = "Whether an image that is added starts FluxVM's guest agent."
  default     = true
}

variable "tenant" {
  type        = string
  description = "Whose pool it is, for an operator that acts for a tenant; otherwise the token's."
  default     = null
}

variable "vcpus" {
  type        = number
  description = "vCPUs of each VM; otherwise the image's."
  default     = null

  validation {
    condition     = var.vcpus == null || coalesce(var.vcpus, 1) >= 1
    error_message = "vcpus must be at least 1."
  }
}

variable "memory_mib" {
  type        = number
  description = "Memory of each VM in MiB; otherwise the image's."
  default     = null

  validation {
    condition     = var.memory_mib == null || coalesce(var.memory_mib, 1) >= 1
    error_message = "memory_mib must be at least 1."
  }
}

variable "disk_size_gib" {
  type        = number
  description = "Disk of each VM in GiB; otherwise the image's."
  default     = null

  validation {
    condition     = var.disk_size_gib == null || coalesce(var.disk_size_gib, 1) >= 1
    error_message = "disk_size_gib must be at least 1; leave it out for the image's own."
  }
}

variable "min_ready" {
  type        = number
  description = "How many VMs to keep booted: about as many as jobs start together. 0 pauses the pool."
  default     = 2

  validation {
    condition     = var.min_ready >= 0 && var.min_ready <= 32 && floor(var.min_ready) == var.min_ready
    error_message = "min_ready must be a whole number from 0 to 32."
  }
}

variable "max_total" {
  type        = number
  description = "At most so many VMs, ready ones and taken ones that still run; otherwise the fleet derives it from min_ready."
  default     = null

  validation {
    condition     = var.max_total == null || (coalesce(var.max_total, 0) >= 0 && coalesce(var.max_total, 0) <= 100)
    error_message = "max_total must be from 0 to 100."
  }
}

variable "node_selector" {
  type        = map(string)
  description = "Only hosts with all of these labels."
  default     = null
}

variable "nodes" {
  type        = set(string)
  description = "Only these hosts."
  default     = null
}

variable "wait_ready" {
  type        = bool
  description = "Whether an apply waits until the pool is full."
  default     = true
}

variable "ready_within" {
  type        = string
  description = "How long an apply waits for a full pool before it goes on with a warning."
  default     = "15m"

  validation {
    condition     = can(regex("^([0-9]+[smh])+$", var.ready_within))
    error_message = "ready_within must be a length of time such as 90s, 15m or 1h30m."
  }
}
