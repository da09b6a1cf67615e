resource "aws_launch_template" "node" {
  for_each = var.regions

  region                 = each.key
  name                   = "${var.name}-node"
  image_id               = var.image
  instance_type          = each.value.instance_type
  user_data              = base64encode(module.machine[each.key].user_data)
  update_default_version = true
  tags                   = local.tags

  block_device_mappings {
    device_name = "/dev/sda1"

    ebs {
      volume_size           = var.disk_gib
      volume_type           = "gp3"
      encrypted             = true
      delete_on_termination = true
    }
  }

  iam_instance_profile {
    arn = aws_iam_instance_profile.node.arn
  }

  # Version 2 only, and one hop: what a container or a forged request fetches is no credential.
  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }

  network_interfaces {
    associate_public_ip_address = true
    delete_on_termination       = true
    security_groups             = [aws_security_group.node[each.key].id]
  }

  tag_specifications {
    resource_type = "instance"
    tags          = local.tags
  }
}

resource "aws_autoscaling_group" "node" {
  for_each = var.regions

  region              = each.key
  name                = "${var.name}-node"
  min_size            = each.value.machines
  max_size            = each.value.machines
  desired_capacity    = each.value.machines
  vpc_zone_identifier = [for zone in sort(each.value.zones) : aws_subnet.this[zone].id]
  health_check_type   = "EC2"

  launch_template {
    id      = aws_launch_template.node[each.key].id
    version = aws_launch_template.node[each.key].latest_version
  }

  # A new launch template replaces machines a few at a time; each drains as it shuts down.
  instance_refresh {
    strategy = "Rolling"

    preferences {
      min_healthy_percentage = 75
    }
  }

  dynamic "tag" {
    for_each = local.tags

    content {
      key                 = tag.key
      value               = tag.value
      propagate_at_launch = true
    }
  }

  # A machine that cannot reach the Internet, or read its token, never joins.
  depends_on = [aws_route.out, aws_route_table_association.this, aws_iam_role_policy.join_token]
}
