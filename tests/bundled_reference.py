"""transformers' own Qwen3-VL, asked the way its documentation says: what our engine must equal.

Shares no code with vlm/: its template, tokenizer, image processor and generate().
"""

import json

import torch
from transformers import AutoTokenizer, GenerationConfig, Qwen3VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil


class Reference:
    """The bundled checkpoint in fp32 inside transformers."""

    def __init__(self, folder):
        self.tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        template = json.loads((folder / "chat_template.json").read_text(encoding="utf-8"))
        self.template = template["chat_template"]
        self.images = Qwen2VLImageProcessorPil.from_pretrained(folder, local_files_only=True)
        self.model = Qwen3VLForConditionalGeneration.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True
        ).eval()
        eos = json.loads((folder / "generation_config.json").read_text())["eos_token_id"]
        self.eos_token_ids = eos if isinstance(eos, list) else [eos]

    def encode(self, messages):
        """Return token ids, pixel values and grids of one chat (vlm.chat.Message objects)."""
        turns = [
            {
                "role": message.role,
                "content": [{"type": "image"} for _ in message.pictures]
                + [{"type": "text", "text": message.text}],
            }
            for message in messages
        ]
        text = self.tokenizer.apply_chat_template(
            turns, chat_template=self.template, tokenize=False, add_generation_prompt=True
        )
        pictures = [picture.image for message in messages for picture in message.pictures]
        pixels, grids = None, []
        if pictures:
            batch = self.images(images=pictures, return_tensors="pt")
            pixels, grids = batch["pixel_values"], batch["image_grid_thw"].tolist()
        pieces = text.split("<|image_pad|>")
        text = pieces[0]
        for (t, h, w), piece in zip(grids, pieces[1:], strict=True):
            text += "<|image_pad|>" * (t * h * w // self.images.merge_size**2) + piece
        return self.tokenizer(text)["input_ids"], pixels, grids

    def batch(self, chats):
        """Return the keyword arguments of forward() and generate() for several chats."""
        encoded = [self.encode(messages) for messages in chats]
        longest = max(len(ids) for ids, _, _ in encoded)
        pad = self.tokenizer.pad_token_id
        ids = torch.tensor([[pad] * (longest - len(ids)) + ids for ids, _, _ in encoded])
        mask = torch.tensor([[0] * (longest - len(ids)) + [1] * len(ids) for ids, _, _ in encoded])
        batch = {
            "input_ids": ids,
            "attention_mask": mask,
            "mm_token_type_ids": (ids == self.model.config.image_token_id).long(),
        }
        pixels = [pixels for _, pixels, _ in encoded if pixels is not None]
        if pixels:
            batch["pixel_values"] = torch.cat(pixels)
            batch["image_grid_thw"] = torch.tensor([g for _, _, grids in encoded for g in grids])
        return batch

    @torch.inference_mode()
    def generate(self, chats, max_new_tokens):
        """Return per chat the greedy ids up to the stop token, and the logits of every step."""
        batch = self.batch(chats)
        config = GenerationConfig(
            do_sample=False,
            max_new_tokens=max_new_tokens,
            eos_token_id=self.eos_token_ids,
            pad_token_id=self.tokenizer.pad_token_id,
            return_dict_in_generate=True,
            output_logits=True,
        )
        out = self.model.generate(**batch, generation_config=config)
        answers = []
        for row, ids in enumerate(out.sequences[:, batch["input_ids"].shape[1] :].tolist()):
            steps = next((i for i, t in enumerate(ids) if t in self.eos_token_ids), len(ids))
            chosen = min(steps + 1, len(ids))
            answers.append((ids[:steps], torch.stack([out.logits[i][row] for i in range(chosen)])))
        return answers
