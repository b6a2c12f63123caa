"""Small tokenizers of the two common families, trained on a few words: byte-level, and SentencePiece-like with byte fallback."""

from __future__ import annotations

import json
from functools import cache

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
GREEDY = "<|user|>"
"""A special token that takes the white space after it, as Phi-3's do."""
THINK = "<think>"
"""An added token that is not special."""

_CORPUS = [
    "user system assistant the model says hello, and the answer is 42.\n",
    "What is the capital of France? < | > im _ start end <| |> im_start im_end\n",
    "def add(a, b):\n    return a + b\n",
]


@cache
def byte_level() -> Tokenizer:
    """As GPT-2, Llama 3, Qwen and SmolLM."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(_CORPUS * 4, trainer)
    return _with_added(tokenizer)


@cache
def sentence_piece() -> Tokenizer:
    """As Llama 2 and Mistral: only the text's very first word gets a space before it."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<unk>"], show_progress=False)
    tokenizer.train_from_iterator(_CORPUS * 4, trainer)
    made = json.loads(tokenizer.to_str())
    vocabulary = made["model"]["vocab"]
    for byte in range(256):
        vocabulary[f"<0x{byte:02X}>"] = len(vocabulary)
    return _with_added(Tokenizer.from_str(json.dumps(made)))


def _with_added(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in SPECIALS]
    )
    tokenizer.add_special_tokens([AddedToken(GREEDY, special=True, normalized=False, rstrip=True)])
    tokenizer.add_tokens([AddedToken(THINK, special=False, normalized=False)])
    return tokenizer
