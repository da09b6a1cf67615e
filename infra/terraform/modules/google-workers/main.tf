locals {
  labels = merge({ skerry-workers = var.name }, var.labels)
  tag    = "${var.name}-node" # firewall rules find machines by it
}

# The image brings no gcloud: the machine asks the metadata server who it is, and Secret Manager for the token.
module "machine" {
  source   = "../machine"
  for_each = var.regions

  join_url     = var.join_url
  options      = each.value.options
  package      = var.package
  token_script = <<-EOT
    #!/usr/bin/env python3
    import base64, json, urllib.request

    def fetch(url, headers):
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=30) as answer:
            return json.load(answer)

    identity = fetch(
        "http://metadata.google.internal/computeMetadata/v1/instance/service-accounts/default/token",
        {"Metadata-Flavor": "Google"},
    )
    secret = fetch(
        "https://secretmanager.googleapis.com/v1/${google_secret_manager_secret.join_token[each.key].id}/versions/latest:access",
        {"Authorization": "Bearer " + identity["access_token"]},
    )
    print(base64.b64decode(secret["payload"]["data"]).decode())
  EOT
}
