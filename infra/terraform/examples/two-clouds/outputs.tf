output "urls" {
  value       = { for edge in module.platform.edges : edge.region => edge.url }
  description = "Each region's URL, once machines have joined and an edge is ready."
}

output "groups" {
  value       = merge(module.aws.groups, module.google.groups)
  description = "By the cloud's region: its group of machines."
}

output "pools" {
  value       = keys(module.platform.pools)
  description = "Ids of the pools, for `skerry control token create --pool`."
}
