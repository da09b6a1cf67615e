locals {
  parameter = "/${var.name}/join-token"
}

resource "aws_ssm_parameter" "join_token" {
  for_each = var.regions

  region           = each.key
  name             = local.parameter
  description      = "What machines of ${var.name} prove that they may join"
  type             = "SecureString"
  value_wo         = var.join_tokens[each.key]
  value_wo_version = var.join_tokens_version
  tags             = local.tags
}

resource "aws_iam_role" "node" {
  name_prefix = "${var.name}-node-"
  tags        = local.tags

  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Action    = "sts:AssumeRole"
      Principal = { Service = "ec2.amazonaws.com" }
    }]
  })
}

resource "aws_iam_role_policy" "join_token" {
  name = "join-token"
  role = aws_iam_role.node.id

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect   = "Allow"
      Action   = "ssm:GetParameter"
      Resource = [for parameter in aws_ssm_parameter.join_token : parameter.arn]
    }]
  })
}

resource "aws_iam_instance_profile" "node" {
  name_prefix = "${var.name}-node-"
  role        = aws_iam_role.node.name
  tags        = local.tags
}
