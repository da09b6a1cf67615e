resource "google_service_account" "node" {
  project      = var.project
  account_id   = "${var.name}-node"
  display_name = "Skerry nodes of ${var.name}"
}

resource "google_secret_manager_secret" "join_token" {
  for_each = var.regions

  project   = var.project
  secret_id = "${var.name}-${each.key}-join-token"
  labels    = local.labels

  replication {
    auto {}
  }
}

resource "google_secret_manager_secret_version" "join_token" {
  for_each = var.regions

  secret                 = google_secret_manager_secret.join_token[each.key].id
  secret_data_wo         = var.join_tokens[each.key]
  secret_data_wo_version = var.join_tokens_version
}

resource "google_secret_manager_secret_iam_member" "node" {
  for_each = var.regions

  project   = var.project
  secret_id = google_secret_manager_secret.join_token[each.key].secret_id
  role      = "roles/secretmanager.secretAccessor"
  member    = "serviceAccount:${google_service_account.node.email}"
}
