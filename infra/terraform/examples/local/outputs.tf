output "urls" {
  value       = { for edge in module.platform.edges : edge.region => edge.url }
  description = "Each region's URL, to be called with the token of `skerry env`."
}
