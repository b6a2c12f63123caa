"""Turns ledgers into traces, metrics and blame. Nothing of it runs on the path of a request: kill it, and only its pages are missing."""
