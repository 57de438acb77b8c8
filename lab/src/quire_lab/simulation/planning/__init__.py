"""How many users a machine serves, and what that takes."""
