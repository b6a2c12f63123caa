"""Where the engine touches the outside: vLLM, torch, transformers, other servers.

The only place that may import vllm, torch and transformers. Translates their types and errors into ours; decides nothing.
"""
