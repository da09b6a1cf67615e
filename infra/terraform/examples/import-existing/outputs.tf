output "pool" {
  value       = skerry_pool.decode.id
  description = "Id of the pool."
}
