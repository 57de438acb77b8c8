"""A checkpoint becomes a model: what it is, its files, its weights and how they are computed."""
