"""Quire beside other servers: the same models, workloads and machine, turn by turn."""
