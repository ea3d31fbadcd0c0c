"""A tokenizer and a text data set where torchtitan's debug configurations look for them; nothing is downloaded.

usage: python titan_assets.py FOLDER
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path


def write_assets(folder: Path) -> None:
    """Below `folder`: tests/assets/tokenizer and tests/assets/c4_test."""
    texts = _texts()
    tokenizer, data = folder / "tests/assets/tokenizer", folder / "tests/assets/c4_test"
    for path in (tokenizer, data):
        path.mkdir(parents=True)
    _train_tokenizer(texts).save(str(tokenizer / "tokenizer.json"))
    config = {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>", "add_bos_token": True}
    (tokenizer / "tokenizer_config.json").write_text(json.dumps({**config, "tokenizer_class": "PreTrainedTokenizerFast"}))
    (data / "data.json").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def _texts() -> list[str]:
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 8))) for _ in range(1000)]
    return [" ".join(draw.choices(words, k=draw.randint(200, 600))) for _ in range(100)]


def _train_tokenizer(texts: list[str]):  # type: ignore[no-untyped-def]  # tokenizers is imported by those who have it
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|begin_of_text|>", "<|end_of_text|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=2000, special_tokens=special, initial_alphabet=alphabet))
    return tokenizer


if __name__ == "__main__":
    write_assets(Path(sys.argv[1]))
