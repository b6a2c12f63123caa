"""Processes that are kept alive: what one is (`child`), when it comes back (`restart`, pure), and a set of them (`supervisor`)."""
