variables {
  join_url     = "https://control.example.com:8789"
  token_script = "#!/bin/sh\necho skjoin_token\n"
}

run "user_data_is_what_cloud_init_reads" {
  command = plan

  variables {
    options = ["--threads", "8"]
    package = "skerry[platform,torch]==0.1.0"
  }

  assert {
    condition     = startswith(output.user_data, "#cloud-config\n")
    error_message = "cloud-init knows user data by its first line"
  }

  assert {
    condition = {
      for file in yamldecode(output.user_data).write_files : file.path => file.content
      } == {
      "/etc/skerry/node.env"                    = "SKERRY_JOIN=https://control.example.com:8789\nSKERRY_OPTIONS=--threads 8\n"
      "/etc/systemd/system/skerry-node.service" = file("../../../systemd/skerry-node.service")
      "/usr/local/sbin/skerry-join-token"       = "#!/bin/sh\necho skjoin_token\n"
    }
    error_message = "files differ from what was asked for"
  }

  assert {
    condition     = contains(flatten(yamldecode(output.user_data).runcmd), "skerry[platform,torch]==0.1.0")
    error_message = "the package is not installed"
  }
}

run "an_edge_is_another_unit" {
  command = plan

  variables {
    kind = "edge"
  }

  assert {
    condition     = contains([for file in yamldecode(output.user_data).write_files : file.path], "/etc/systemd/system/skerry-edge.service")
    error_message = "an edge is a node"
  }
}

run "the_script_that_prints_the_token_is_roots" {
  command = plan

  assert {
    condition = [
      for file in yamldecode(output.user_data).write_files : file.permissions if file.path == "/usr/local/sbin/skerry-join-token"
    ] == ["0700"]
    error_message = "others may run it"
  }
}

run "the_control_plane_is_reached_by_tls" {
  command         = plan
  expect_failures = [var.join_url]

  variables {
    join_url = "http://control.example.com"
  }
}

run "an_option_is_one_word" {
  command         = plan
  expect_failures = [var.options]

  variables {
    options = ["--threads 8; reboot"]
  }
}

run "a_package_is_no_option_of_pip" {
  command         = plan
  expect_failures = [var.package]

  variables {
    package = "--index-url=http://example.com"
  }
}

run "a_script_says_who_runs_it" {
  command         = plan
  expect_failures = [var.token_script]

  variables {
    token_script = "echo token"
  }
}
