"""OpenAI's API as values: request JSON → `Call`, deltas → response bytes.

Everything in here is pure: no loop, no I/O, no clock, no randomness except a seed that is passed in.
The yardstick is OpenAI's documented API; vLLM's extra sampling fields are taken at the top level, as vLLM's server takes them.
Nothing that a client sends is silently ignored: a field is obeyed, has its harmless value, or the request is refused by the field's name.
"""
