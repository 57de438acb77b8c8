"""How fast a model is served: workloads, an engine in this process or a server, and reports."""
