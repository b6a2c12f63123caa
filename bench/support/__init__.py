"""What several benchmarks share: processes with CPU accounts, a streaming load generator, a paced backend, the report."""
