locals {
  user_data = templatefile("${path.module}/../../../cloud-init/machine.yaml.tftpl", {
    kind         = var.kind
    join_url     = var.join_url
    options      = join(" ", var.options)
    package      = var.package
    token_script = var.token_script
    unit         = file("${path.module}/../../../systemd/skerry-${var.kind}.service")
  })
}
