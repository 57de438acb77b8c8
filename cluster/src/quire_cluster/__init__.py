"""Several engines that serve together, as an application of Ray Serve's."""
