"""Parts of the step book (`services.engine.stepbook`): what a step was, what it cost others, what is remembered of it.

Values in, values out: no loop, no clock, no bus. Times are whole microseconds of one monotonic clock, so that sums are exact.
"""
