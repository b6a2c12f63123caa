"""The door: OpenAI-compatible HTTP and NATS request/reply in front of the engines.

Cores (`openai/`, `admission.py`, `routing.py`, `streams.py`) decide on values; `http/`, `nats_api.py` and `service.py` touch the outside.
The gateway never tokenizes and never renders a template.
"""
