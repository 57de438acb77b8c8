"""The demonstration model, which comes with Quire."""

from pathlib import Path

DEMO_MODEL = Path(__file__).parent
DEMO_DRAFT = DEMO_MODEL / "draft"
"""A smaller one, which drafts for it."""
