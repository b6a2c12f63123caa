"""`headrace kv`: what the KV stores of a platform hold, and orders to them. Speaks to them over the bus only."""
