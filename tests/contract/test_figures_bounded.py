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


def is_open(kind: inspect.Type) -> bool:
    """Whether `kind` is a number without a lower or without an upper bound."""
    if not isinstance(kind, inspect.IntType | inspect.FloatType):
        return False
    return (kind.ge is None and kind.gt is None) or (kind.le is None and kind.lt is None)


def parts(kind: inspect.Type, place: str) -> Iterator[tuple[str, inspect.Type]]:
    """What `kind` is made of, with the place of each."""
    match kind:
        case inspect.StructType():
            for field in kind.fields:
                if field.name not in NAMES:
                    yield f"{kind.cls.__name__}.{field.name}", field.type
        case inspect.UnionType(types=several) | inspect.TupleType(item_types=several):
            yield from ((place, one) for one in several)
        case inspect.CollectionType():
            yield place, kind.item_type
        case inspect.DictType():
            yield from ((place, kind.key_type), (place, kind.value_type))


def open_figures(kind: inspect.Type, place: str, seen: set[type]) -> Iterator[str]:
    """The places below `place` that hold a figure without a lower or an upper bound."""
    if isinstance(kind, inspect.StructType):
        if kind.cls in seen or kind.cls.__name__ in ELSEWHERE:
            return
        seen.add(kind.cls)
    if is_open(kind):
        yield place
    for where, part in parts(kind, place):
        yield from open_figures(part, where, seen)


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
