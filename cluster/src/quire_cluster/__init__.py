"""Several engines behind one address, as an application of Ray Serve."""
