output "user_data" {
  value       = local.user_data
  description = "cloud-init user data, to be given to the machine as it is."
}
