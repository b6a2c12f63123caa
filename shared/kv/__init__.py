"""What an engine and the KV store of its host say to each other over their Unix socket, and how both name what is stored.

`protocol` is the contract of the socket, `seqpacket` and `link` carry it, `client` is the engine's side;
`namespace` says which bytes may ever be read by whom.
Not the bus: this is the data plane of one host, and it goes on when the bus is gone.
"""
