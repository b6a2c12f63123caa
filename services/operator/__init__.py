"""The operator: makes the fleet match the services that people declared."""
