"""What operators see of the engine while it runs."""
