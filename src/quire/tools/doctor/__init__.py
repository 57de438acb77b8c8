"""What this machine is, as far as it matters here, and what would make it faster."""
