"""One replica: an inference backend behind the port in `ports.py`, and the shell that puts it on the bus.

vllm, torch and transformers are imported in `adapters/` only.
"""
