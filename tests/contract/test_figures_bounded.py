"""Every figure that crosses the bus has bounds at which decoding refuses it, so that no arithmetic on it can end a service."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import inspect

from shared.messages import ALL_MESSAGES

ELSEWHERE = {
    # The engine refuses what the model or vLLM cannot serve, and says which parameter it was.
    "Sampling",
    # As the model said it, for the client; nobody reckons with it.
    "TokenLogprob",
    "TopLogprob",
}
"""Parts whose figures are bounded by other means."""
NAMES = {"stream", "stop_reason", "token_ids"}
"""Fields whose numbers are names: compared and handed on, never reckoned with."""


def open_figures(kind: inspect.Type, place: str, seen: set[type]) -> Iterator[str]:
    """The places below `place` that hold a figure without a lower or an upper bound."""
    match kind:
        case inspect.IntType() | inspect.FloatType():
            below = kind.ge is None and kind.gt is None
            above = kind.le is None and kind.lt is None
            if below or above:
                yield place
        case inspect.StructType():
            if kind.cls in seen or kind.cls.__name__ in ELSEWHERE:
                return
            seen.add(kind.cls)
            for field in kind.fields:
                if field.name not in NAMES:
                    yield from open_figures(field.type, f"{kind.cls.__name__}.{field.name}", seen)
        case inspect.UnionType():
            for one in kind.types:
                yield from open_figures(one, place, seen)
        case inspect.CollectionType():
            yield from open_figures(kind.item_type, place, seen)
        case inspect.TupleType():
            for one in kind.item_types:
                yield from open_figures(one, place, seen)
        case inspect.DictType():
            yield from open_figures(kind.key_type, place, seen)
            yield from open_figures(kind.value_type, place, seen)


def test_every_figure_of_a_message_has_bounds():
    seen: set[type] = set()
    assert [
        place
        for kind in ALL_MESSAGES
        for place in open_figures(inspect.type_info(kind), kind.__name__, seen)
    ] == []
    assert len(seen) > len(ALL_MESSAGES)


def test_a_figure_without_bounds_is_found():
    kind = inspect.type_info(dict[str, list[int | None]])
    assert list(open_figures(kind, "there", set())) == ["there"]
