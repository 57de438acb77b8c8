"""Subcommands that take more than a screen: their flags, and how they tell what they found."""
