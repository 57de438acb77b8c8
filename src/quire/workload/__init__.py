"""Requests to serve: their times and lengths, from production traces."""

from quire.workload.traces import TraceRequest, read_azure

__all__ = ["TraceRequest", "read_azure"]
