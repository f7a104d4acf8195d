"""What the scripts count and how they judge; that each starts."""
