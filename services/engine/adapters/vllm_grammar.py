"""Builds grammars as vLLM's core does, in a process where that may take long or fail (`grammar_builder`)."""

from __future__ import annotations

import pickle

from vllm.config import VllmConfig
from vllm.sampling_params import StructuredOutputsParams
from vllm.tokenizers.registry import cached_tokenizer_from_config
from vllm.v1.structured_output.backend_types import StructuredOutputOptions
from vllm.v1.structured_output.backend_xgrammar import XgrammarBackend
from vllm.v1.structured_output.request import get_structured_output_key

from services.engine.adapters.grammar_builder import Compile
from services.engine.adapters.vllm_sampling import refusal_of


def is_tried(config: VllmConfig) -> bool:
    """Return whether the core builds grammars as `load_compile` does; those of other libraries are an operator's own choice."""
    return bool(config.structured_outputs_config.backend == "xgrammar")


def setup_of(config: VllmConfig) -> bytes:
    """Return what `load_compile` must know."""
    return pickle.dumps(config)


def load_compile(setup: bytes) -> Compile:
    """Return the build of vLLM's core, on the model's vocabulary."""
    config: VllmConfig = pickle.loads(setup)  # noqa: S301 - it comes from `setup_of`, in the parent of this process
    model = config.model_config
    backend = XgrammarBackend(
        config, tokenizer=cached_tokenizer_from_config(model), vocab_size=model.get_vocab_size()
    )

    def compile_(kind: str, spec: str) -> None:
        try:
            backend.compile_grammar(StructuredOutputOptions[kind], spec)
        except Exception as error:
            raise ValueError(str(refusal_of(error))) from error

    return compile_


def key_of(grammar: StructuredOutputsParams) -> tuple[str, str]:
    """Return kind and text of a grammar."""
    kind, spec = get_structured_output_key(grammar)
    return kind.name, spec
