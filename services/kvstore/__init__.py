"""The KV store of a host: keeps blocks of all its engines on one or two disks (decision 8).

The process owns index, eviction and queue; each mirror is a child process that alone opens LMDB (`adapters/mirror_child.py`).
Engines speak to it by `shared.kv`; the bus is for status and commands only, and loads and saves go on without it.
"""
