resource "google_compute_region_instance_template" "node" {
  for_each = var.regions

  project      = var.project
  region       = each.key
  name_prefix  = "${var.name}-node-"
  machine_type = each.value.machine_type
  tags         = [local.tag]
  labels       = local.labels

  metadata = {
    user-data              = module.machine[each.key].user_data
    block-project-ssh-keys = "true"
    enable-oslogin         = "TRUE"
  }

  disk {
    source_image = var.image
    disk_type    = var.disk_type
    disk_size_gb = var.disk_gib
    boot         = true
    auto_delete  = true
  }

  dynamic "guest_accelerator" {
    for_each = each.value.accelerator == null ? [] : [each.value.accelerator]

    content {
      type  = guest_accelerator.value.type
      count = guest_accelerator.value.count
    }
  }

  # A GPU cannot be moved to another host while it computes.
  scheduling {
    on_host_maintenance = "TERMINATE"
    automatic_restart   = true
  }

  network_interface {
    subnetwork = google_compute_subnetwork.this[each.key].id

    access_config {
      network_tier = "PREMIUM"
    }
  }

  service_account {
    email  = google_service_account.node.email
    scopes = ["https://www.googleapis.com/auth/cloud-platform"]
  }

  shielded_instance_config {
    enable_vtpm                 = true
    enable_integrity_monitoring = true
  }

  lifecycle {
    create_before_destroy = true
  }
}

resource "google_compute_region_instance_group_manager" "node" {
  for_each = var.regions

  project                          = var.project
  region                           = each.key
  name                             = "${var.name}-node"
  base_instance_name               = "${var.name}-node"
  target_size                      = each.value.machines
  distribution_policy_zones        = each.value.zones
  distribution_policy_target_shape = "ANY"

  version {
    instance_template = google_compute_region_instance_template.node[each.key].self_link
  }

  # A new template replaces machines a few at a time; each drains as it shuts down.
  update_policy {
    type                         = "PROACTIVE"
    minimal_action               = "REPLACE"
    max_surge_fixed              = 0
    max_unavailable_fixed        = length(each.value.zones)
    instance_redistribution_type = "NONE"
  }

  # A machine that cannot read its token never joins.
  depends_on = [google_secret_manager_secret_version.join_token, google_secret_manager_secret_iam_member.node]
}
