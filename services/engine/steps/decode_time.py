"""How long a decode-only step of a batch takes, learned from those that were seen.

A mean with slow forgetting for each power of two of the batch's size, with straight lines between.
Decode time grows with the contexts too, which it follows within some tens of steps.
"""

from __future__ import annotations

from bisect import insort

from typing_extensions import override

_BUCKETS = 24
_MEMORY = 32
"""Steps that a mean looks back on, about."""
_OUTLIER = 4.0
"""A step that takes this many times the mean (a stopped process, a first use of a kernel) counts as one that takes this many times."""
_TRUSTED = 4
"""Steps after which a bucket's mean can call one an outlier."""


class DecodeTime:
    """Time of decode-only steps by batch size, in microseconds."""

    def __init__(self) -> None:
        self._sizes = [0.0] * _BUCKETS
        self._means = [0.0] * _BUCKETS
        self._counts = [0] * _BUCKETS
        self._known: list[int] = []
        """Buckets that have been seen, the smallest first."""

    @override
    def __repr__(self) -> str:
        known = [
            f"{size:.0f}: {mean:.0f} us"
            for size, mean in zip(self._sizes, self._means, strict=True)
            if size
        ]
        return f"<DecodeTime {', '.join(known) or 'nothing seen'}>"

    def learn(self, size: int, us: int) -> None:
        """Take a decode-only step of `size` choices."""
        bucket = size.bit_length()
        count, mean = self._counts[bucket], self._means[bucket]
        if count >= _TRUSTED and us > _OUTLIER * mean:
            us = int(_OUTLIER * mean)
        if not count:
            insort(self._known, bucket)
        if count < _MEMORY:
            self._counts[bucket] = count = count + 1
        self._means[bucket] = mean + (us - mean) / count
        self._sizes[bucket] += (size - self._sizes[bucket]) / count

    def of(self, size: int) -> float | None:
        """Return what a step of `size` choices would take, or none where no decode-only step has been seen."""
        low = high = 0
        for bucket in self._known:
            if self._sizes[bucket] <= size:
                low = bucket
            else:
                high = bucket
                break
        if not low or not high:
            return self._means[low or high] or None
        below, above = self._sizes[low], self._sizes[high]
        share = (size - below) / (above - below)
        return self._means[low] + share * (self._means[high] - self._means[low])
