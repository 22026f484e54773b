"""Tiny random models built on the spot, with tokenizers of their own: everything with them runs in seconds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from pydoc_data.topics import topics

import torch
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

WORDS = [f"word{i}" for i in range(60)]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def in_bert_form(tokenizer: Tokenizer, positions: int) -> PreTrainedTokenizerFast:
    """A tokenizer whose vocabulary begins with SPECIAL, with BERT's special tokens and segments."""
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=positions,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )


def write_tiny_bert(folder: Path, seed: int = 0, heads: int = 2) -> Path:
    """Write a bi-encoder (2 layers, width 32, 64 positions) with a tokenizer that knows WORDS; returns `folder`."""
    vocabulary = {token: i for i, token in enumerate(SPECIAL + WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    in_bert_form(tokenizer, 64).save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=heads,
        intermediate_size=64,
        max_position_embeddings=64,
        initializer_range=0.2,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        BertModel(config).save_pretrained(folder)
    return folder


def write_tiny_classifier(folder: Path, labels: Sequence[str], seed: int = 0, **settings: int) -> Path:
    """Write the same BERT with a random classification head of such labels; returns `folder`.

    settings: what the configuration has otherwise.
    """
    write_tiny_bert(folder, seed)
    config = BertConfig.from_pretrained(folder)
    config.update(settings)
    config.id2label, config.label2id = dict(enumerate(labels)), {label: i for i, label in enumerate(labels)}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        BertForSequenceClassification(config).save_pretrained(folder)
    return folder


def write_tiny_llm(folder: Path, seed: int = 0) -> Path:
    """Write a Qwen3 (2 layers, width 64) with random weights and a byte-level BPE trained on Python's documentation."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=2000, special_tokens=special, initial_alphabet=alphabet)
    bpe.train_from_iterator(list(topics.values()), trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    fast.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    fast.save_pretrained(folder)
    config = Qwen3Config(
        vocab_size=len(fast),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,  # the smallest that vLLM's attention on the CPU takes
        max_position_embeddings=2048,
        initializer_range=0.2,
        eos_token_id=special.index("<|im_end|>"),
        pad_token_id=special.index("<|endoftext|>"),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        Qwen3ForCausalLM(config).bfloat16().save_pretrained(folder)
    return folder


ENCODERS = ("bert", "roberta", "xlm-roberta", "modernbert", "deberta-v2", "electra", "mpnet")
DECODERS = ("qwen3", "llama", "mistral", "gemma")
_SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "initializer_range": 0.2,
}


def write_tiny_encoder(folder: Path, family: str, seed: int = 0, positions: int = 64) -> Path:
    """Write a bare encoder of `family` with random weights and a tokenizer of whole words in its pair format."""
    write_tiny_bert(folder, seed)
    segments = family in ("bert", "deberta-v2", "electra")
    backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
    if not segments:
        between = "[SEP] [SEP]" if "roberta" in family else "[SEP]"
        backend.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair=f"[CLS] $A {between} $B [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
    names = ["input_ids", "attention_mask", *(["token_type_ids"] if segments else [])]
    tokens = {name: f"[{name[:3].upper()}]" for name in ("pad_token", "unk_token", "cls_token", "sep_token")}
    PreTrainedTokenizerFast(
        tokenizer_object=backend, model_max_length=positions, model_input_names=names, **tokens
    ).save_pretrained(folder)
    more: dict[str, object] = {
        "roberta": {"max_position_embeddings": positions + 1, "type_vocab_size": 1},
        "xlm-roberta": {"max_position_embeddings": positions + 1, "type_vocab_size": 1},
        "mpnet": {"max_position_embeddings": positions + 2},
        # the first layer sees all tokens, the second eight to each side
        "modernbert": {"local_attention": 16, "global_attn_every_n_layers": 2},
        "electra": {"embedding_size": 16},
        "deberta-v2": {
            "relative_attention": True,
            "pos_att_type": ["p2c", "c2p"],
            "position_buckets": 32,
            "norm_rel_ebd": "layer_norm",
            "share_att_key": True,
            "position_biased_input": False,
            "type_vocab_size": 0,
        },
    }.get(family, {})  # type: ignore[assignment]
    ids = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3}
    settings = {"vocab_size": len(SPECIAL + WORDS), "max_position_embeddings": positions} | _SMALL | ids | more
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        AutoModel.from_config(AutoConfig.for_model(family, **settings)).save_pretrained(folder)
    return folder


def write_tiny_decoder(
    folder: Path,
    family: str,
    seed: int = 0,
    chatml: bool = False,
    padding: bool = True,
    tied: bool = False,
    head: int = 16,
) -> Path:
    """Write a causal language model of `family` (float32, random) with a byte-level BPE that knows "yes" and "no"."""
    bpe = Tokenizer(models.BPE())
    pieces = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pieces), "isolated"),  # Qwen's rule
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    special = ["<bos>", "<eos>", *(["<pad>"] if padding else []), *(["<|im_start|>", "<|im_end|>"] if chatml else [])]
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator([f"{word} yes no yes,no,yes,no?\nyes:no" for word in WORDS] * 3, trainer)
    if chatml:
        bpe.add_tokens([AddedToken("<think>", normalized=False), AddedToken("</think>", normalized=False)])
    if not chatml:
        bpe.post_processor = processors.TemplateProcessing(
            single="<bos> $A", pair="<bos> $A <bos> $B", special_tokens=[("<bos>", 0)]
        )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        model_max_length=512,
        bos_token=None if chatml else "<bos>",
        eos_token="<eos>",
        **({"pad_token": "<pad>"} if padding else {}),
    )
    fast.save_pretrained(folder)
    settings = _SMALL | {"vocab_size": len(fast), "max_position_embeddings": 512, "num_key_value_heads": 1}
    settings |= {"head_dim": head, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": None}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = AutoConfig.for_model(family, **settings, tie_word_embeddings=tied)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder
