"""Prefix warmth: which beginnings of prompts this engine holds blocks for, told to the gateways as hashes of text.

`blocks` has what backends say, `pieces` what gateways are told, `map` joins the two, `guess` stands in for backends that do not tell;
`desk` is the shell.
"""
