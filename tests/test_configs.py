"""The files in configs/: they load, say why, and default.toml is what the code does anyway."""

import re
import tomllib

import pytest
from conftest import REPOSITORY

from vlm.config import CONFIG_FOLDER, Settings, config_names, load_settings

KEY = re.compile(r"^[a-z_]+ = [^#]+(#.*)?$", re.MULTILINE)


def test_these_files_are_here() -> None:
    assert config_names() == ("default", "fast", "fine", "low_memory", "space")


@pytest.mark.parametrize("name", config_names())
def test_a_file_loads_by_name_and_by_path(name: str) -> None:
    assert load_settings(name) == load_settings(CONFIG_FOLDER / f"{name}.toml")


def test_default_toml_equals_the_defaults_in_code_key_by_key() -> None:
    assert load_settings("default") == Settings()
    content = tomllib.loads((CONFIG_FOLDER / "default.toml").read_text(encoding="utf-8"))
    named = {section: set(keys) for section, keys in content.items()}
    assert named == {section: set(keys) for section, keys in Settings().model_dump().items()}


@pytest.mark.parametrize("name", config_names())
def test_every_key_has_a_comment_with_its_reason(name: str) -> None:
    text = (CONFIG_FOLDER / f"{name}.toml").read_text(encoding="utf-8")
    keys = list(KEY.finditer(text))
    assert len(keys) == sum(len(table) for table in tomllib.loads(text).values())
    assert all(len((key[1] or "").split()) >= 5 for key in keys)


@pytest.mark.parametrize("name", [name for name in config_names() if name != "default"])
def test_another_file_names_only_what_differs(name: str) -> None:
    content = tomllib.loads((CONFIG_FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    default, loaded = Settings().model_dump(), load_settings(name).model_dump()
    for section, keys in content.items():
        for key in keys:
            assert loaded[section][key] != default[section][key], f"{section}.{key}"


@pytest.mark.parametrize("name", config_names())
def test_one_full_chat_of_the_2b_model_fits_its_cache_budget(name: str) -> None:
    settings = load_settings(name)
    bytes_per_token = 28 * 8 * 128 * 2 * 4  # layers, kv heads, head size, keys and values, fp32
    needed = settings.model.context_tokens * bytes_per_token
    assert needed <= settings.memory.kv_cache_bytes
    pictures = settings.picture.max_pictures * settings.picture.max_visual_tokens
    assert pictures + settings.generation.max_new_tokens < settings.model.context_tokens


def test_every_key_is_used_by_the_code() -> None:
    sources = [REPOSITORY / "demo.py", *(REPOSITORY / "vlm").rglob("*.py")]
    code = "\n".join(path.read_text(encoding="utf-8") for path in sources if path.stem != "config")
    for section, keys in Settings().model_dump().items():
        for key in keys:
            names = {"seed": "fixed_seed", "image_detail": "max_visual_tokens"}
            assert re.search(rf"\.{names.get(key, key)}\b", code), f"{section}.{key} has no effect"
