output "hostname" {
  value       = cloudflare_load_balancer.geo.name
  description = "The name that clients call."
}

output "pools" {
  value       = local.pools
  description = "Id of each region's pool."
}
