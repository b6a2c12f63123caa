"""Tests: unit (values), contract (both sides of a port), integration, e2e, house (rules)."""
