output "groups" {
  value       = { for region, group in aws_autoscaling_group.node : region => group.name }
  description = "Name of each AWS region's autoscaling group."
}

output "security_groups" {
  value       = { for region, group in aws_security_group.node : region => group.id }
  description = "Id of each AWS region's security group, for rules of your own."
}

output "networks" {
  value       = { for region, network in aws_vpc.this : region => { id = network.id, cidr = network.cidr_block } }
  description = "Id and IPv4 range of each AWS region's network, for peering."
}
