"""Makes the built-in model's tokenizer and configuration files.

The tokenizer is byte-level BPE with Qwen's pre-tokenizer, special tokens and chat
template; its merges come from the questions and answers of `questions.py`.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.trainers import BpeTrainer

from vlm.bundled.questions import (
    COLOURS_ZH,
    FOLLOW_UPS,
    POSITIONS_ZH,
    SHAPES_ZH,
    TOPICS,
    ask,
)
from vlm.bundled.scenes import SceneMix, draw_scene
from vlm.bundled.small_talk import OUT_OF_SCOPE, SMALL_TALK

VOCABULARY = 1000
SPECIAL_TOKENS = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>",
    "<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>",
    "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>",
)  # fmt: skip
_PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CHAT_TEMPLATE = (
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' }}"
    "{%- if message.content is string %}{{- message.content }}{%- else %}"
    "{%- for part in message.content %}"
    "{%- if part.type == 'image' or 'image' in part or 'image_url' in part %}"
    "{{- '<|vision_start|><|image_pad|><|vision_end|>' }}"
    "{%- elif 'text' in part %}{{- part.text }}{%- endif %}"
    "{%- endfor %}{%- endif %}{{- '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


def build_tokenizer(seed: int) -> Tokenizer:
    """Train the BPE merges on generated chats."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=VOCABULARY - len(SPECIAL_TOKENS),
        min_frequency=20,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    chats = _chats(random.Random(seed))
    tokenizer.train_from_iterator((piece for text in chats for piece in _words(text)), trainer)
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in SPECIAL_TOKENS])
    return tokenizer


_ZH_WORDS = (*COLOURS_ZH.values(), *SHAPES_ZH.values(), *POSITIONS_ZH.values(), "的", "有", "吗")
_ZH_SPLIT = re.compile("(" + "|".join(_ZH_WORDS) + ")")
_OTHER_FORMS = (
    "does the image contain a shape?", "is no shape present?", "does the image not contain a",
    "is there not a shape in the image?", "what is the color of the shape?", "is a shape present?",
    "what color is the shape?", "what shape is in the image?", "what shape does the image contain?",
    "what shape is present?", "what is the shape?", "yes", "no",
)  # fmt: skip


def _words(text: str) -> list[str]:
    """Cut Chinese into its words, which are written without spaces, so that merges keep to them."""
    return [piece for piece in _ZH_SPLIT.split(text) if piece]


def _chats(rng: random.Random) -> Iterator[str]:
    for _ in range(1500):
        scene = draw_scene(rng, 64, 64, SceneMix(), scale=1.0)
        for topic in TOPICS:
            for language in ("en", "zh"):
                question = ask(rng, scene, topic, language)
                if question is not None:
                    yield question.text
                    # Printed words stay single characters: the model is to read, not to guess.
                    if topic != "read":
                        yield question.answer
                        yield question.answer.lower()
    for _ in range(60):
        for _, *texts in (*SMALL_TALK, *OUT_OF_SCOPE):
            yield from texts
        for questions in FOLLOW_UPS.values():
            yield from (text for _, text in questions)
        yield from ("user\n", "assistant\n", "system\n")
        yield from _OTHER_FORMS


def model_config(tokenizer: Tokenizer) -> dict[str, object]:
    """Return the geometry of the built-in Qwen3-VL, about 8 million parameters."""
    ids = {token: tokenizer.token_to_id(token) for token in SPECIAL_TOKENS}
    return {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "model_type": "qwen3_vl",
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
        "tie_word_embeddings": True,
        "text_config": {
            "model_type": "qwen3_vl_text",
            "vocab_size": tokenizer.get_vocab_size(),
            "hidden_size": 256,
            "intermediate_size": 704,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 64,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-6,
            "max_position_embeddings": 2048,
            "attention_bias": False,
            "rope_theta": 10000.0,
            "rope_scaling": {
                "mrope_interleaved": True,
                "mrope_section": [12, 10, 10],
                "rope_type": "default",
            },
            "bos_token_id": ids["<|endoftext|>"],
            "eos_token_id": ids["<|im_end|>"],
            "tie_word_embeddings": True,
            "dtype": "bfloat16",
        },
        "vision_config": {
            "model_type": "qwen3_vl_vision",
            "depth": 6,
            "hidden_size": 192,
            "intermediate_size": 768,
            "num_heads": 6,
            "hidden_act": "gelu_pytorch_tanh",
            "patch_size": 16,
            "temporal_patch_size": 2,
            "spatial_merge_size": 2,
            "in_channels": 3,
            "out_hidden_size": 256,
            "num_position_embeddings": 144,
            "deepstack_visual_indexes": [1, 3],
        },
    }


def write_folder(folder: Path, seed: int) -> None:
    """Write every file of the checkpoint but its weights."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = build_tokenizer(seed)
    tokenizer.save(str(folder / "tokenizer.json"))
    eos, end = (tokenizer.token_to_id(t) for t in ("<|im_end|>", "<|endoftext|>"))
    files: dict[str, object] = {
        "config.json": model_config(tokenizer),
        "generation_config.json": {
            "do_sample": True,
            "temperature": 0.7,
            "top_p": 0.8,
            "top_k": 20,
            "repetition_penalty": 1.0,
            "bos_token_id": end,
            "pad_token_id": end,
            "eos_token_id": [eos, end],
        },
        "preprocessor_config.json": {
            "size": {"longest_edge": 192 * 192, "shortest_edge": 128 * 128},
            "patch_size": 16,
            "temporal_patch_size": 2,
            "merge_size": 2,
            "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5],
            "processor_class": "Qwen3VLProcessor",
            "image_processor_type": "Qwen2VLImageProcessorFast",
        },
        "tokenizer_config.json": {
            "tokenizer_class": "Qwen2Tokenizer",
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "bos_token": None,
            "unk_token": None,
            "add_prefix_space": False,
            "additional_special_tokens": list(SPECIAL_TOKENS[1:]),
            "clean_up_tokenization_spaces": False,
            "errors": "replace",
            "model_max_length": 2048,
            "split_special_tokens": False,
        },
        "chat_template.json": {"chat_template": _CHAT_TEMPLATE},
    }
    for name, content in files.items():
        text = json.dumps(content, ensure_ascii=False, indent=2)
        (folder / name).write_text(text + "\n", encoding="utf-8")
