"""Who may go to an engine now, who waits, who is refused and why: by class, by tenant, by deadline.

Pure: values in, verdicts out, time as `now`. No asyncio, no bus, no engine is chosen here (that is `routing.py`).
"""
