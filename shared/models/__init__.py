"""Models on this machine: what a directory holds, which there are, how a known one is made, and what tells two apart."""
