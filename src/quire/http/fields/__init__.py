"""What the fields of bodies are made of."""
