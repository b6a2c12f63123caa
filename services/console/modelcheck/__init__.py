"""`headrace validate-model`, `debug-logits` and `capture`: is a model directory what it should be, and where does it differ.

What a model says is measured in a process of its own (`probe_child`); what that means is decided here, on values
(`judge`, `deviation`). Nothing in here imports a model library or an engine.
"""
