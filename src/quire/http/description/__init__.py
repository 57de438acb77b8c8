"""What /openapi.json and /docs tell."""
