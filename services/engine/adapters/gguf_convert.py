"""Turn a GGUF file into a model directory in HF layout: `python -m services.engine.adapters.gguf_convert SOURCE TARGET`.

A program of its own: it needs torch and for a moment several times the model's size in memory; its caller needs neither.
Says on stdout, one line a step, what begins now. Locks, checks and the switch are the caller's part (`shared.models.fetch`).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

WEIGHTS_DTYPE = "bfloat16"
"""Half of float32's disk and memory, and GGUF's four-bit values lose nothing in it that shows.

What the engine computes in is its own choice: a CPU without AVX-512 is several times slower in bfloat16 than in float32.
"""


def report(step: str) -> None:
    """Tell the caller what begins now."""
    sys.stdout.write(step + "\n")
    sys.stdout.flush()


def load(source: Path) -> tuple[Any, Any]:
    """Return model and tokenizer, weights dequantized to `WEIGHTS_DTYPE`."""
    # Imported after the first report: these two lines are most of a conversion's time.
    import torch  # noqa: PLC0415
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig  # noqa: PLC0415

    report("dequantizing the weights")
    model = AutoModelForCausalLM.from_pretrained(
        source.parent,
        gguf_file=source.name,
        dtype=getattr(torch, WEIGHTS_DTYPE),
        quantization_config=GgufConfig(dequantize=True),
    )
    report("building the tokenizer")
    return model, AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)


def convert(source: Path, target: Path) -> None:
    """Fill the empty folder `target` with config, tokenizer and safetensors of the GGUF file `source`."""
    report("loading torch and transformers")
    model, tokenizer = load(source)
    report("writing the model directory")
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


def main(arguments: list[str]) -> None:
    """Convert as the two arguments say; a failure is the interpreter's traceback and exit code 1."""
    source, target = (Path(argument) for argument in arguments)
    convert(source, target)


if __name__ == "__main__":
    main(sys.argv[1:])
