"""The black box of an engine: what can be read after a kill, from which nothing is dumped.

`layout` is the bytes, `report` what they say for people (both pure); `shelf` is the folder where boxes are found, kept and counted.
The engine writes, whoever survives it reads. Never a prompt, an answer or a line of a log: numbers, ids and reasons only.
"""
