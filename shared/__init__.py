"""What every service may use: the message contract, the bus port, and the runtime around them.

Knows no service. Layers, lowest first: ids → messages → ports → adapters → runtime (`pyproject.toml` holds the contract).
Only what at least one service uses lives here.
"""
