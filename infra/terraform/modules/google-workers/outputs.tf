output "groups" {
  value       = { for region, group in google_compute_region_instance_group_manager.node : region => group.instance_group }
  description = "Each Google Cloud region's instance group."
}

output "network" {
  value       = google_compute_network.this.id
  description = "Id of the network, for peering and rules of your own."
}

output "service_account" {
  value       = google_service_account.node.email
  description = "Who the machines are."
}
