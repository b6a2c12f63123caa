"""`headrace bench`: a load test against any OpenAI-compatible server. `workload` and `figures` are pure; `client` talks; `run` drives."""
