"""The page of docs/reference on `LLMService` files, from the tables by which they are read."""

from __future__ import annotations

from collections.abc import Iterator

from shared.spec.engine import SYNC, TENSOR_PARALLEL_SYNC
from shared.spec.fields import Field, Table
from shared.spec.tables import METADATA, SPEC_FIELDS
from shared.spec.writing import value_text

INTRODUCTION = """# LLMService files

What a service is, how many replicas it has and what it promises. `headrace apply -f FILE` takes one file, several, or a folder; a
file may hold several documents. [examples/](../../examples) has some that work; `headrace schema` prints the JSON Schema for editors.

Keys are taken in camelCase and snake_case, words with and without a plural s: `maxSpanPerRequest`, `max_spans_per_request`. Values
are as people write them: `32Gi`, `512MiB`, `30s`, `15m`, `0.1%`, `P99 < 2s`. An unknown key, a unit that does not fit or a
contradiction is refused with file, line and column, all of them at once, and nothing is applied.

| key | what | write | left out |
|---|---|---|---|
"""


def spec_page() -> str:
    """Return the page in Markdown."""
    rows = [
        "| `apiVersion` | `llmplatform.io/v1` | | required |",
        "| `kind` | `LLMService` | | required |",
        *_rows(METADATA.fields, "metadata", METADATA),
        *_rows(SPEC_FIELDS, "spec", None),
    ]
    return INTRODUCTION + "\n".join(rows) + "\n\n" + "\n".join(_sync())


def _rows(fields: tuple[Field, ...], path: str, table: Table | None) -> Iterator[str]:
    defaults = table.defaults() if table is not None else {}
    for field in fields:
        where = f"{path}.{field.key}"
        if field.table is not None:
            many = ", one or a list" if field.many else ""
            short = (
                f"; a value alone is its `{field.table.shorthand}`" if field.table.shorthand else ""
            )
            yield f"| `{where}` | {field.about}{many}{short} | | |"
            yield from _rows(field.table.fields, where, field.table)
            continue
        assert field.kind is not None
        hint = field.kind.hint.removeprefix("write ").replace("|", "\\|")
        left_out = _default(field, defaults) if table is not None else ""
        yield f"| `{where}` | {field.about} | {hint} | {left_out} |"


def _default(field: Field, defaults: dict[str, object]) -> str:
    if field.attr not in defaults:
        return "required"
    value = defaults[field.attr]
    if value is None or value in ("", (), {}):
        return ""
    return f"`{value_text(field, value)}`"


def _sync() -> Iterator[str]:
    yield "## How engines keep in step"
    yield ""
    yield "`syncStrategy` and `tensorParallelSync` become settings of vLLM, or are refused; nothing else is taken."
    yield ""
    yield "| key | value | fields of `AsyncEngineArgs` |"
    yield "|---|---|---|"
    for key, table in (("syncStrategy", SYNC), ("tensorParallelSync", TENSOR_PARALLEL_SYNC)):
        for word, fields in table.items():
            text = ", ".join(f"`{name}={value}`" for name, value in fields.items())
            yield f"| `{key}` | `{word}` | {text or 'vLLM decides'} |"
