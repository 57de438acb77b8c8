"""What others say of the same files and texts: references from outside, fetched as packages."""
