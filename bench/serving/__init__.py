"""What clients see of a platform: its start, its answers, its edge beside a proxy and attackers."""
