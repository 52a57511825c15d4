"""Loading checkpoints laid out like the hub's: equal to transformers, or refused in words."""

import json
import re
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from tiny_checkpoint import tiny_model, write_checkpoint

from vlm import checkpoint
from vlm.architecture import check_architecture
from vlm.chat import Message
from vlm.checkpoint import load_model
from vlm.errors import CheckpointError, MemoryLimitError, Stopped
from vlm.images import open_picture
from vlm.linear import available_kinds
from vlm.model import QwenVL
from vlm.patches import PatchedPicture, patch_picture
from vlm.positions import position_ids
from vlm.precision import PrecisionPlan
from vlm.prompt import Prompt

FP32 = PrecisionPlan("fp32", "fp32", "fp32", "asked for", {})
MIXED = PrecisionPlan("mixed", "fp32", "fp16" if "fp16" in available_kinds() else "bf16", "", {})
PLENTY = 10**12


def load(folder: Path, plan: PrecisionPlan = FP32, available_bytes: int = PLENTY) -> QwenVL:
    """Load as if the machine had so much free memory."""
    return load_model(folder, plan, available_bytes=available_bytes)


def need_bytes(folder: Path) -> int:
    """What the memory plan says that fp32 needs."""
    plans: list[checkpoint.MemoryPlan] = []
    make = checkpoint.plan_memory
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "plan_memory", lambda *a: plans.append(make(*a)) or plans[0])
        load(folder)
    return plans[0].need_bytes


def ask_about_a_picture(model: QwenVL) -> tuple[Prompt, PatchedPicture]:
    """Encode one fixed question about one fixed picture."""
    pixels = np.random.default_rng(5).integers(0, 256, (96, 160, 3), dtype=np.uint8)
    picture = open_picture(Image.fromarray(pixels))
    patched = patch_picture(picture, model.geometry, 64)
    message = Message("user", "What is this?", (picture,))
    return model.tokenizer.encode([message], [patched]), patched


def our_logits(model: QwenVL) -> torch.Tensor:
    """Logits (n, vocab) of the fixed question."""
    prompt, patched = ask_about_a_picture(model)
    features = model.vision.encode(patched.pixel_values, patched.grid_thw)
    (span,) = prompt.spans
    visual_index = torch.arange(span.start, span.start + span.length)
    hidden = model.decoder.embed(prompt.token_ids).clone()
    hidden[visual_index] = features.embeddings
    positions, _ = position_ids(prompt, model.geometry.merge_size)
    hidden = model.decoder.forward(
        hidden, positions, model.decoder.new_cache(), features.deepstack, visual_index
    )
    return model.decoder.logits(hidden)


def stock_logits(bundled_folder: Path, is_tied: bool, model: QwenVL) -> torch.Tensor:
    """Logits of the same question from transformers."""
    prompt, patched = ask_about_a_picture(model)
    ids = torch.tensor([prompt.token_ids])
    stock = tiny_model(bundled_folder, is_tied)
    with torch.inference_mode():
        out = stock(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            pixel_values=patched.pixel_values,
            image_grid_thw=torch.tensor([patched.grid_thw]),
            mm_token_type_ids=(ids == model.tokenizer.image_token_id).long(),
        )
    return out.logits[0]


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize(
    ("dtype", "shard_size"),
    [
        (torch.bfloat16, "1GB"),
        (torch.bfloat16, "100KB"),
        (torch.float32, "1GB"),
        (torch.float32, "200KB"),
        (torch.float16, "100KB"),
    ],
)
def test_logits_equal_transformers(
    tmp_path: Path, bundled_folder: Path, is_tied: bool, dtype: torch.dtype, shard_size: str
) -> None:
    folder = write_checkpoint(
        tmp_path / "m", bundled_folder, is_tied=is_tied, dtype=dtype, shard_size=shard_size
    )
    shards = len(list(folder.glob("*.safetensors")))
    assert shards == 1 if shard_size == "1GB" else shards > 3
    model = load(folder)
    expected = stock_logits(bundled_folder, is_tied, model)
    assert expected.std() > 0.1
    # bf16-exact weights lose their smallest values in fp16.
    tolerance = 1e-4 if dtype != torch.float16 else 1e-2
    torch.testing.assert_close(our_logits(model), expected, rtol=0, atol=tolerance)
    parameters = sum(p.numel() for p in tiny_model(bundled_folder, is_tied).parameters())
    assert model.info.parameters == parameters


@pytest.mark.parametrize("is_tied", [True, False])
def test_tied_head_is_the_embedding_table_and_untied_is_not(
    tmp_path: Path, bundled_folder: Path, is_tied: bool
) -> None:
    folder = write_checkpoint(tmp_path / "m", bundled_folder, is_tied=is_tied)
    decoder = load(folder).decoder
    norm = load_file(folder / "model.safetensors")["model.language_model.norm.weight"].float()
    rows = torch.eye(64) * 8  # of unit mean square, so that the last norm only weighs them
    table_logits = (rows * norm) @ decoder.embed(range(1000)).T
    assert torch.allclose(decoder.logits(rows), table_logits, atol=1e-3) == is_tied


def test_template_as_jinja_file(tmp_path: Path, bundled_folder: Path) -> None:
    json_folder = write_checkpoint(tmp_path / "json", bundled_folder)
    jinja_folder = write_checkpoint(
        tmp_path / "jinja", bundled_folder, template="chat_template.jinja"
    )
    ids = [ask_about_a_picture(load(f))[0].token_ids for f in (json_folder, jinja_folder)]
    assert ids[0] == ids[1]


def test_tied_checkpoint_may_hold_the_head_too_if_equal(
    tmp_path: Path, bundled_folder: Path
) -> None:
    folder = write_checkpoint(tmp_path / "m", bundled_folder)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    expected = our_logits(load(folder))
    tensors["lm_head.weight"] = tensors["model.language_model.embed_tokens.weight"].clone()
    save_file(tensors, path, metadata={"format": "pt"})
    assert torch.equal(our_logits(load(folder)), expected)
    tensors["lm_head.weight"][5, 5] += 1
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="ties lm_head to the embeddings"):
        load(folder)


def test_mixed_is_close_and_leaves_no_file_mapped_but_the_table(
    tmp_path: Path, bundled_folder: Path
) -> None:
    folder = write_checkpoint(tmp_path / "m", bundled_folder, shard_size="100KB")
    model = load(folder, MIXED)
    expected = stock_logits(bundled_folder, True, model)
    torch.testing.assert_close(our_logits(model), expected, rtol=0, atol=0.05)
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    mapped = {
        Path(entry.path).name
        for entry in psutil.Process().memory_maps(grouped=False)
        if str(folder) in entry.path
    }
    assert mapped == {index["model.language_model.embed_tokens.weight"]}


def test_fp32_weights_are_copies_that_survive_the_file(
    tmp_path: Path, bundled_folder: Path
) -> None:
    folder = write_checkpoint(
        tmp_path / "m", bundled_folder, dtype=torch.float32, shard_size="100KB"
    )
    model = load(folder)
    mapped = [m.path for m in psutil.Process().memory_maps() if str(folder) in m.path]
    assert len(mapped) == 1
    assert model.info.weight_bytes > 4 * 0.9 * model.info.parameters


def test_progress_counts_every_byte_once_and_can_stop(tmp_path: Path, bundled_folder: Path) -> None:
    folder = write_checkpoint(tmp_path / "m", bundled_folder, shard_size="100KB")
    seen: list[tuple[int, int]] = []
    load_model(folder, FP32, lambda done, total: seen.append((done, total)))
    total = sum(t.nbytes for f in folder.glob("*.safetensors") for t in load_file(f).values())
    assert seen[0] == (0, total) and seen[-1] == (total, total)
    assert seen == sorted(seen)

    def stop(done: int, total: int) -> None:
        if done:
            raise Stopped

    threads = torch.get_num_threads()
    with pytest.raises(Stopped):
        load_model(folder, FP32, stop)
    assert torch.get_num_threads() == threads


def change_tensors(folder: Path, **changes: torch.Tensor | None) -> None:
    """Rewrite the only shard with tensors replaced, added or (None) taken away."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    for name, tensor in changes.items():
        if tensor is None:
            del tensors[name]
        else:
            tensors[name] = tensor
    save_file(tensors, path, metadata={"format": "pt"})


Q_PROJ = "model.language_model.layers.1.self_attn.q_proj.weight"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({Q_PROJ: None}, rf"1 missing: {Q_PROJ}"),
        ({"model.extra.weight": torch.zeros(2)}, r"1 unexpected: model.extra.weight"),
        ({Q_PROJ: torch.zeros(128, 32)}, rf"{Q_PROJ} \[128, 32\] instead of \[128, 64\]"),
        ({Q_PROJ: torch.zeros(128, 64, dtype=torch.int8)}, rf"not in bf16.*{Q_PROJ} \(I8\)"),
    ],
)
def test_every_tensor_is_accounted_for(
    tmp_path: Path, bundled_folder: Path, changes: dict[str, torch.Tensor | None], words: str
) -> None:
    folder = write_checkpoint(tmp_path / "m", bundled_folder)
    change_tensors(folder, **changes)
    with pytest.raises(CheckpointError, match=words):
        load(folder)


def test_untied_model_without_head_is_refused(tmp_path: Path, bundled_folder: Path) -> None:
    folder = write_checkpoint(tmp_path / "m", bundled_folder, is_tied=False)
    change_tensors(folder, **{"lm_head.weight": None})
    with pytest.raises(CheckpointError, match="1 missing: lm_head.weight"):
        load(folder)


def test_missing_and_cut_shards(tmp_path: Path, bundled_folder: Path) -> None:
    folder = write_checkpoint(tmp_path / "m", bundled_folder, shard_size="100KB")
    shard = sorted(folder.glob("*.safetensors"))[1]
    content = shard.read_bytes()
    shard.write_bytes(content[:-10])
    with pytest.raises(CheckpointError, match=rf"{shard.name} is cut off or damaged"):
        load(folder)
    shard.unlink()
    with pytest.raises(CheckpointError, match=rf"{shard.name} is missing"):
        load(folder)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "qwen2_5_vl", "architectures": ["Qwen2_5_VL"]}, "Supported are the dense"),
        ({"quantization_config": {"quant_method": "fp8"}}, r"quantised weights \(fp8\)"),
        ({"image_token_id": 5}, "image_token_id is 5 in config.json"),
        ({"vision_config": {"patch_size": 14}}, "of another shape|patch_size is 14"),
        ({"text_config": {"num_hidden_layers": 4}}, r"11 missing: .*layers\.3\."),
        ({"text_config": {"num_hidden_layers": 2}}, r"11 unexpected: .*layers\.2\."),
        ({"text_config": {"num_hidden_layers": "three"}}, "num_hidden_layers is 'three', which"),
        ({"text_config": {"max_position_embeddings": 0}}, "max_position_embeddings is 0, which"),
        ({"text_config": {"max_position_embeddings": -1}}, "max_position_embeddings is -1, which"),
        ({"text_config": {"max_position_embeddings": 2048.5}}, "is 2048.5, which must be a whole"),
        ({"text_config": {"max_position_embeddings": True}}, "is True, which must be a whole"),
        ({"text_config": {"max_position_embeddings": None}}, "is None, which must be a whole"),
        ({"text_config": {"num_key_value_heads": 0}}, "num_key_value_heads is 0, which"),
        ({"text_config": {"head_dim": -32}}, "head_dim is -32, which"),
        ({"text_config": {"rms_norm_eps": 0}}, "rms_norm_eps is 0, which"),
        ({"text_config": {"rope_parameters": {"rope_theta": -1}}}, "rope_theta is -1, which"),
        ({"text_config": {"rope_parameters": {"mrope_section": [16, 0, 0]}}}, "mrope_section is"),
        ({"vision_config": {"depth": 0}}, "vision_config.depth is 0, which"),
        ({"vision_config": {"spatial_merge_size": -2}}, "spatial_merge_size is -2, which"),
        ({"vision_config": {"in_channels": 0}}, "in_channels is 0, which"),
        ({"vision_config": {"deepstack_visual_indexes": [1, 4]}}, "must be layers below 4"),
        ({"vision_config": {"deepstack_visual_indexes": [[1]]}}, "must be layers below 4"),
        ({"architectures": 5}, "is a 5, which cannot run"),
        ({"quantization_config": "fp8"}, r"quantised weights \(fp8\)"),
        ({"text_config": None}, "text_config has no"),
        ({"text_config": {"rope_parameters": {"mrope_section": [4]}}}, "text_config is damaged"),
        ({"text_config": {"attention_bias": True}}, r"missing: .*self_attn\.\w_proj\.bias"),
    ],
)
def test_config_that_does_not_fit(
    tmp_path: Path, bundled_folder: Path, change: dict[str, object], words: str
) -> None:
    folder = write_checkpoint(tmp_path / "m", bundled_folder)
    config = json.loads((folder / "config.json").read_text())
    for key, value in change.items():
        if isinstance(value, dict) and key in config:
            config[key].update(value)
        else:
            config[key] = value
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=words):
        load(folder)


def test_keys_and_values_without_a_number_of_heads_of_their_own(bundled_folder: Path) -> None:
    config = json.loads((bundled_folder / "config.json").read_text())
    config["text_config"]["num_key_value_heads"] = None
    check_architecture(config, "this model")


def test_biases_that_are_there_but_have_no_use_are_refused(
    tmp_path: Path, bundled_folder: Path
) -> None:
    folder = write_checkpoint(tmp_path / "m", bundled_folder)
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["attention_bias"] = True
    (folder / "config.json").write_text(json.dumps(config))
    rows = {"q": 128, "k": 64, "v": 64, "o": 64}
    change_tensors(
        folder,
        **{
            f"model.language_model.layers.{i}.self_attn.{part}_proj.bias": torch.zeros(n)
            for i in range(3)
            for part, n in rows.items()
        },
    )
    with pytest.raises(CheckpointError, match="has no use for"):
        load(folder)


def test_numbers_that_are_not_finite_stop_the_start(tmp_path: Path, bundled_folder: Path) -> None:
    folder = write_checkpoint(tmp_path / "m", bundled_folder)
    change_tensors(folder, **{Q_PROJ: torch.full((128, 64), float("nan"), dtype=torch.bfloat16)})
    with pytest.raises(CheckpointError, match=f"{Q_PROJ} .* not finite"):
        load(folder)


def test_the_table_is_looked_at_where_the_head_is_not_made_of_it(
    tmp_path: Path, bundled_folder: Path
) -> None:
    folder = write_checkpoint(tmp_path / "m", bundled_folder, is_tied=False)
    table = torch.zeros(1000, 64, dtype=torch.bfloat16)
    table[999, 63] = float("inf")
    change_tensors(folder, **{checkpoint.EMBED: table})
    with pytest.raises(CheckpointError, match=f"{checkpoint.EMBED} .* not finite"):
        load(folder)


def test_rotary_frequencies_are_checked(
    tmp_path: Path, bundled_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_checkpoint(tmp_path / "m", bundled_folder)

    for wrong, words in ((checkpoint.Decoder, "text"), (checkpoint.VisionTower, "vision")):
        with monkeypatch.context() as patch:
            patch.setattr(wrong, "inv_freq", torch.zeros(3))
            with pytest.raises(CheckpointError, match=f"frequencies of the {words} part"):
                load(folder)


def test_short_memory_takes_a_smaller_precision(tmp_path: Path, bundled_folder: Path) -> None:
    folder = write_checkpoint(tmp_path / "m", bundled_folder)
    need = need_bytes(folder)
    model = load(folder, FP32, available_bytes=need)
    assert model.info.precision == FP32 and model.info.notice == ""
    model = load(folder, FP32, available_bytes=need - 1)
    assert model.info.precision.name == "mixed"
    assert "Memory is short: fp32 precision needs" in model.info.notice


def test_layers_left_on_disk_compute_the_same(
    tmp_path: Path, bundled_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_checkpoint(tmp_path / "m", bundled_folder, is_tied=False, shard_size="100KB")
    whole = load(folder)
    monkeypatch.setattr(checkpoint, "smaller_plans", lambda plan, kinds: [])
    least = int(re.search(r"at least (\d+)", least_memory(folder, monkeypatch))[1])
    model = load(folder, available_bytes=least)
    assert "4 vision layers (read once per picture)" in model.info.notice
    assert "3 decoder layers (read for every word)" in model.info.notice
    assert model.info.precision.name == "fp32"
    head_and_mergers = model.info.weight_bytes
    assert head_and_mergers < 0.65 * whole.info.weight_bytes
    torch.testing.assert_close(our_logits(model), our_logits(whole), rtol=0, atol=1e-5)


def least_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The refusal when nothing fits, with plain numbers of bytes."""
    with monkeypatch.context() as patch:
        patch.setattr("vlm.memory_plan.format_bytes", str)
        with pytest.raises(MemoryLimitError) as refusal:
            load(folder, available_bytes=1000)
    return str(refusal.value)


def test_nothing_fits(tmp_path: Path, bundled_folder: Path) -> None:
    folder = write_checkpoint(tmp_path / "m", bundled_folder)
    with pytest.raises(MemoryLimitError, match=r"needs at least .* MiB .* 1000 B is free|KiB"):
        load(folder, FP32, available_bytes=1000)
