"""Quantizes a model by AWQ through llm-compressor: `PYTHON awq_quantize.py check`, or `… SOURCE TARGET BITS GROUP_SIZE [TEXT_FILE]`.

A program of its own for a Python that has llm-compressor: its needs of torch and transformers are not those of vLLM, so it lives in another
environment, and this file imports nothing of ours. `check` says as JSON what is there; else each step is told as a line on stdout.
Switching the result in is the caller's part (`services.console.modelcheck.quantize`).
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
from pathlib import Path
from typing import Any

STEPS = os.dup(1)
"""Where the steps are told: what stdout was at the start."""
NEEDED = ("llmcompressor", "compressed-tensors", "datasets", "torch", "transformers")
SAMPLE_TOKENS = 512
"""Longest piece of text for calibration."""
MAX_SAMPLES = 128
"""AWQ looks at the mean size of activations, which settles early; its authors use 128 pieces of 512 tokens."""
ANSWER_TOKENS = 96
SUBJECTS = (
    "the history of writing",
    "how bread is made",
    "the planets",
    "a walk in a forest",
    "how a computer stores numbers",
    "the rules of football",
    "why the sea is salty",
    "a letter to a friend",
    "how to learn a language",
    "the seasons of the year",
    "trade between countries",
    "a recipe with rice",
    "how a bicycle works",
    "the life of bees",
    "music and memory",
    "a contract between two companies",
)
FORMS = ("Write a short text about {}.", "List five facts about {}.")


def report(step: str) -> None:
    """Tell the caller what begins now."""
    os.write(STEPS, f"{step}\n".encode())


def check() -> dict[str, Any]:
    """Return the versions of what is needed (none where it is missing), and whether torch sees an accelerator."""
    packages = {name: _version(name) for name in NEEDED}
    accelerator = False
    if all(packages.values()):
        import torch  # noqa: PLC0415 - seconds

        accelerator = torch.accelerator.is_available()
    return {"packages": packages, "accelerator": accelerator}


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def quantize(source: Path, target: Path, *, bits: int, group_size: int, text: Path | None) -> None:
    """Fill the folder `target` with the quantized model: weights in groups with a zero point, all but the output layer."""
    report("loading llm-compressor")
    import torch  # noqa: PLC0415 - seconds
    from compressed_tensors.quantization import (  # noqa: PLC0415
        QuantizationArgs,
        QuantizationScheme,
    )
    from llmcompressor import oneshot  # noqa: PLC0415
    from llmcompressor.modifiers.awq import AWQModifier  # noqa: PLC0415
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415

    report("loading the model")
    tokenizer = AutoTokenizer.from_pretrained(source)
    # The search for scales compares small differences, which bfloat16 rounds away, and CPUs compute float32 at least as fast.
    on_accelerator = torch.accelerator.is_available()
    model = AutoModelForCausalLM.from_pretrained(
        source, dtype="auto" if on_accelerator else torch.float32
    )
    stored = getattr(torch, str(model.config.dtype).removeprefix("torch."), torch.bfloat16)
    samples = _samples(model, tokenizer, text)
    report(f"quantizing with {len(samples)} pieces of text")
    weights = QuantizationArgs(
        num_bits=bits, type="int", symmetric=False, strategy="group", group_size=group_size
    )
    scheme = QuantizationScheme(targets=["Linear"], weights=weights)
    recipe = AWQModifier(ignore=["lm_head"], config_groups={"group_0": scheme})
    oneshot(
        model=model,
        dataset=_dataset(samples),
        recipe=[recipe],
        max_seq_length=SAMPLE_TOKENS,
        num_calibration_samples=len(samples),
    )
    report("writing the model directory")
    model.to(stored if stored is not torch.float32 else torch.bfloat16)
    model.save_pretrained(target, save_compressed=True)
    tokenizer.save_pretrained(target)


def _dataset(samples: list[list[int]]) -> Any:
    from datasets import Dataset  # noqa: PLC0415 - seconds

    return Dataset.from_dict(
        {"input_ids": samples, "attention_mask": [[1] * len(sample) for sample in samples]}
    )


def _samples(model: Any, tokenizer: Any, text: Path | None) -> list[list[int]]:
    """Return pieces of a text, or what the model itself writes about some subjects."""
    if text is not None:
        ids = tokenizer(text.read_text(encoding="utf-8"))["input_ids"]
        pieces = [ids[at : at + SAMPLE_TOKENS] for at in range(0, len(ids), SAMPLE_TOKENS)]
        return pieces[:MAX_SAMPLES]
    report("letting the model write text for calibration")
    import torch  # noqa: PLC0415 - loaded by now

    torch.manual_seed(0)
    words = [form.format(subject) for form in FORMS for subject in SUBJECTS]
    return _written(model, tokenizer, [_prompt(tokenizer, each) for each in words])


def _written(model: Any, tokenizer: Any, prompts: list[list[int]]) -> list[list[int]]:
    """Return prompts with what the model writes behind them, drawn at temperature 1."""
    end = tokenizer.eos_token_id
    width = max(map(len, prompts))
    padded = [[end] * (width - len(prompt)) + prompt for prompt in prompts]
    mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    import torch  # noqa: PLC0415 - loaded by now

    rows = model.generate(
        torch.tensor(padded, device=model.device),
        attention_mask=torch.tensor(mask, device=model.device),
        max_new_tokens=ANSWER_TOKENS,
        do_sample=True,
        temperature=1.0,
        top_p=0.95,
        pad_token_id=end,
    ).tolist()
    answers = [row[width:] for row in rows]
    return [
        [*prompt, *(answer[: answer.index(end)] if end in answer else answer)][:SAMPLE_TOKENS]
        for prompt, answer in zip(prompts, answers, strict=True)
    ]


def _prompt(tokenizer: Any, words: str) -> list[int]:
    if not tokenizer.chat_template:
        return list(tokenizer(words)["input_ids"])
    turns = [{"role": "user", "content": words}]
    rendered = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=True)
    return list(rendered["input_ids"])


def main(words: list[str]) -> None:
    """Do what the words say; a failure is the interpreter's traceback and exit code 1."""
    os.dup2(2, 1)  # libraries that print must not spoil the steps
    if words == ["check"]:
        report(json.dumps(check()))
        return
    source, target, bits, group_size, *text = words
    quantize(
        Path(source),
        Path(target),
        bits=int(bits),
        group_size=int(group_size),
        text=Path(text[0]) if text else None,
    )


if __name__ == "__main__":
    main(sys.argv[1:])
