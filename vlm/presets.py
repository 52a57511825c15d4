"""The presets of configs/presets/: named ways to answer that a person can pick.

A preset is a settings file that names how answers are drawn and, where it matters, how much
of a picture is read. `--config configs/presets/precise.toml` works as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from vlm.config import CONFIG_FOLDER, GenerationSettings, load_settings

PRESET_FOLDER = CONFIG_FOLDER / "presets"


@dataclass(frozen=True)
class Preset:
    """One way to answer."""

    name: str
    generation: GenerationSettings
    max_visual_tokens: int | None
    """Visual tokens per picture; None leaves them as they are."""


@cache
def load_presets() -> dict[str, Preset]:
    """Read all presets by name. Raises ConfigError."""
    return {path.stem: _read(path.stem) for path in sorted(PRESET_FOLDER.glob("*.toml"))}


def _read(name: str) -> Preset:
    settings = load_settings(PRESET_FOLDER / f"{name}.toml")
    names_detail = "image_detail" in settings.picture.model_fields_set
    detail = settings.picture.max_visual_tokens if names_detail else None
    return Preset(name, settings.generation, detail)
