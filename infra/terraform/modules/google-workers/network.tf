resource "google_compute_network" "this" {
  project                 = var.project
  name                    = var.name
  auto_create_subnetworks = false
}

resource "google_compute_subnetwork" "this" {
  for_each = var.regions

  project                  = var.project
  region                   = each.key
  name                     = var.name
  network                  = google_compute_network.this.id
  ip_cidr_range            = each.value.cidr
  private_ip_google_access = true
}

resource "google_compute_firewall" "edges" {
  count = length(var.edge_cidrs) > 0 ? 1 : 0

  project       = var.project
  name          = "${var.name}-edges"
  description   = "Streams of edges"
  network       = google_compute_network.this.name
  direction     = "INGRESS"
  source_ranges = var.edge_cidrs
  target_tags   = [local.tag]

  allow {
    protocol = "tcp"
    ports    = ["${var.ports.from}-${var.ports.to}"]
  }
}

resource "google_compute_firewall" "nodes" {
  project     = var.project
  name        = "${var.name}-nodes"
  description = "KV of other nodes"
  network     = google_compute_network.this.name
  direction   = "INGRESS"
  source_tags = [local.tag]
  target_tags = [local.tag]

  allow {
    protocol = "tcp"
    ports    = ["${var.ports.from}-${var.ports.to}"]
  }
}
