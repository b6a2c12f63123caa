"""The host's outside: processes, models, limits, devices."""
