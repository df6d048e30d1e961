# Without a fleet: a mock provider answers.

mock_provider "fluxvm" {}

variables {
  name  = "linux-ci"
  image = "ubuntu-26-04"
}

run "a_pool_of_an_image_that_is_there" {
  command = plan

  assert {
    condition     = length(fluxvm_image.this) == 0
    error_message = "An image is added although none was asked for."
  }

  assert {
    condition     = fluxvm_pool.this.name_prefix == "linux-ci-" && fluxvm_pool.this.image == "ubuntu-26-04" && fluxvm_pool.this.min_ready == 2
    error_message = "The pool is not the one that the variables describe."
  }

  assert {
    condition     = fluxvm_pool.this.max_total == null && fluxvm_pool.this.node_selector == null
    error_message = "What was left out is set."
  }
}

run "an_image_of_its_own" {
  variables {
    image_path = "/var/lib/fluxvm/images/ubuntu-26-04"
    memory_mib = 2048
    min_ready  = 0
    max_total  = 0
    nodes      = ["studio-1"]
  }

  assert {
    condition     = fluxvm_image.this[0].name == "ubuntu-26-04" && fluxvm_image.this[0].memory_mib == 2048 && fluxvm_image.this[0].vcpus == 1 && fluxvm_image.this[0].has_agent
    error_message = "The image is not the one that the variables describe."
  }

  assert {
    condition     = fluxvm_pool.this.min_ready == 0 && fluxvm_pool.this.max_total == 0 && contains(fluxvm_pool.this.nodes, "studio-1")
    error_message = "0 is not kept apart from unset."
  }

  assert {
    condition     = output.pool == fluxvm_pool.this.name
    error_message = "The output pool does not name the pool."
  }
}

run "bad_values_are_refused" {
  command = plan

  variables {
    name         = "CI"
    image        = "a/b"
    guest_os     = "plan9"
    vcpus        = 0
    min_ready    = 33
    max_total    = 101
    ready_within = "soon"
  }

  expect_failures = [var.name, var.image, var.guest_os, var.vcpus, var.min_ready, var.max_total, var.ready_within]
}

run "fewer_than_ready" {
  command = plan

  variables {
    min_ready = 4
    max_total = 3
  }

  expect_failures = [fluxvm_pool.this]
}
