"""One peer, one workload, one process: these run in the peers' environments, without Quire."""
