"""Quire serves large language models from paged memory."""
