"""Turns ledgers into traces, metrics and blame. Nothing of it runs on the path of a request: kill it, and only its pages are missing.

Cores decide on values (`sampling`, `limiter`, `restraint`, `holding`, `outbox`) and make bytes (`spans`, `wire`);
`adapters/` hand them to collectors, `service.py` is the shell.
"""
