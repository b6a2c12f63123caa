"""What decides in the KV tiers of one engine: which blocks are worth a disk, which jobs are under way, which slots may be used again.

Pure cores: keys, slots and times are values here. `services.engine.adapters.kv_*` connect them with vLLM and with the store.
"""
