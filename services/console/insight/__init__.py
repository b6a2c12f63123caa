"""What became of requests and why: `headrace trace`, `top`, `logs` and `blame`.

All from the ledgers that the bus keeps for an hour, from heartbeats, and from what engines tell of their steps; no database.
Read only: nothing in here changes what others do. Pictures and words are made by pure modules, from values;
`commands` reads the bus, and only `output` writes to the terminal.
"""
