output "regions" {
  value       = sort([for region in skerry_region.this : region.id])
  description = "Ids of the regions."
}

output "pools" {
  value       = { for name, pool in skerry_pool.this : name => { id = pool.id, region = pool.region, role = pool.role } }
  description = "By REGION-NAME: each pool's id, region and role."
}

output "edges" {
  value       = { for name, edge in skerry_edge_node.this : name => { region = edge.region, url = edge.url } }
  description = "By REGION-NAME: each edge's region and URL."
}

output "deployments" {
  value       = { for name, deployment in skerry_deployment.this : name => { model = deployment.model, pools = deployment.pools } }
  description = "By name: each deployment's model, and the ids of the pools that serve it."
}

output "tokens" {
  value       = { for name, token in skerry_api_token.this : name => token.secret }
  description = "By name: each API token's secret."
  sensitive   = true
}
