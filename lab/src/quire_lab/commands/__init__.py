"""Subcommands of the laboratory: flags and output."""
