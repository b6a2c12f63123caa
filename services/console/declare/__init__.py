"""`headrace apply`, `get`, `describe`, `scale`, `delete`, `schema`: declaring services and looking at them."""
