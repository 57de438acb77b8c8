"""The settings of the HTTP server."""
