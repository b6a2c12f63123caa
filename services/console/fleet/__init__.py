"""`headrace up`: NATS, gateway and engines as processes of this machine, started together and ended together.

`plan` and `restart` decide (pure); `child` and `zygote_child` run one process; `supervisor` keeps them; `up` tells the person.
"""
