"""The ledger of each request: stamps while it runs, and from them one record of where its time went, whatever became of it.

In here: stamps as values, the account of the twelve stages, the trace context, and the shelf from which batches leave. No bus and
no loop; the clock is given.
"""
