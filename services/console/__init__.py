"""The command line for people: starts, asks and measures a platform, and keeps its models.

Writes to the terminal in its output module only; everything else returns values or raises `UserError`.
Reads the bus like any service; on the request path of nobody.
"""
