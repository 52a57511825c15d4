"""The settings: what may be set, within which bounds, and how a TOML file is read.

A file names only what differs from the defaults here, which equal configs/default.toml;
the reason and unit of every key stand there. Flags override the file.
Imports no torch, so that a wrong setting is reported at once.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from vlm.errors import ConfigError
from vlm.units import GIB, MIB, parse_bytes

CONFIG_FOLDER = Path(__file__).resolve().parent.parent / "configs"
IMAGE_DETAILS: Mapping[str, int] = {"fast": 256, "balanced": 512, "fine": 1280}
"""Visual tokens a picture may take, by name."""
LEAST_VISUAL_TOKENS, MOST_VISUAL_TOKENS = 16, 16384
"""Bounds of what a picture may take, as a number."""
FLAGS: Mapping[str, str] = {
    "engine.kind": "--engine",
    "engine.base_url": "--base-url",
    "engine.api_key_env": "--api-key-env",
    "model.model": "--model",
    "model.precision": "--precision",
    "generation.max_new_tokens": "--max-new-tokens",
    "generation.temperature": "--temperature",
    "generation.seed": "--seed",
    "picture.image_detail": "--detail",
    "server.host": "--host",
    "server.port": "--port",
    "server.api_key": "--api-key",
    "server.remote_pictures": "--remote-pictures",
}
"""Which flag sets a key, so that a message can name it."""


def _read_bytes(value: object) -> object:
    return parse_bytes(value) if isinstance(value, str) else value


def _read_image_detail(value: object) -> object:
    names = ", ".join(f'"{name}"' for name in IMAGE_DETAILS)
    if isinstance(value, str) and value not in IMAGE_DETAILS:
        raise ValueError(f"must be {names} or a number{did_you_mean(value, IMAGE_DETAILS)}")
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise ValueError(f"must be {names} or a whole number of visual tokens")
    if isinstance(value, int) and not LEAST_VISUAL_TOKENS <= value <= MOST_VISUAL_TOKENS:
        raise ValueError(
            f"as a number must be from {LEAST_VISUAL_TOKENS} to {MOST_VISUAL_TOKENS} visual tokens"
        )
    return value


ByteCount = Annotated[int, BeforeValidator(_read_bytes), Field(ge=0)]
ImageDetail = Annotated[str | int, BeforeValidator(_read_image_detail)]


class _Section(BaseModel):
    # Strict: in a settings file "8080" for 8080 or true for 1 is a slip, not a choice.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class EngineSettings(_Section):
    """Whether the model runs in this process, or on a server that speaks OpenAI's API."""

    kind: Literal["local", "openai"] = "local"
    base_url: str = Field("", repr=False)
    api_key_env: str = Field("", repr=False)
    answers_at_once: int = Field(8, ge=1, le=1000)
    silence_s: float = Field(600.0, ge=1, le=86400, allow_inf_nan=False)


class ModelSettings(_Section):
    """Which model runs, in which precision and on how many threads."""

    model: str = Field("auto", min_length=1)
    precision: Literal["auto", "fp32", "mixed", "int8"] = "auto"
    context_tokens: int = Field(8192, ge=256, le=262144)
    download: bool = True
    cache_folder: str = ""
    threads: int = Field(0, ge=0, le=1024)


class GenerationSettings(_Section):
    """How answers are drawn; the defaults a question starts from."""

    temperature: float = Field(0.7, ge=0, le=2, allow_inf_nan=False)
    top_p: float = Field(0.8, gt=0, le=1, allow_inf_nan=False)
    top_k: int = Field(20, ge=0, le=1000)
    presence_penalty: float = Field(1.5, ge=-2, le=2, allow_inf_nan=False)
    max_new_tokens: int = Field(512, ge=1, le=32768)
    seed: int = Field(-1, ge=-1, le=2**63 - 1)
    loop_guard: bool = True

    @property
    def fixed_seed(self) -> int | None:
        """The seed every answer uses, or None to draw a new one each time."""
        return None if self.seed < 0 else self.seed


class PictureSettings(_Section):
    """How much of a picture the model sees, and which pictures are let in."""

    image_detail: ImageDetail = "balanced"
    max_megapixels: float = Field(178.0, gt=0, le=1000, allow_inf_nan=False)
    max_pictures: int = Field(8, ge=1, le=100)

    @property
    def max_visual_tokens(self) -> int:
        """Visual tokens one picture may take at most."""
        return visual_token_budget(self.image_detail)


class MemorySettings(_Section):
    """How many bytes the caches may take, and what must stay free."""

    kv_cache_bytes: ByteCount = 2 * GIB
    feature_cache_bytes: ByteCount = 256 * MIB
    min_free_bytes: ByteCount = 512 * MIB


class ServerSettings(_Section):
    """Where the page is served and how much it takes in."""

    host: str = Field("127.0.0.1", min_length=1)
    port: int = Field(7860, ge=1, le=65535)
    queue_size: int = Field(16, ge=1, le=1000)
    answers_at_once: int = Field(4, ge=1, le=16)
    max_upload_bytes: ByteCount = 50 * MIB
    api_key: str = Field("", repr=False)
    remote_pictures: bool = False


class Settings(_Section):
    """All settings of one start, checked."""

    engine: EngineSettings = EngineSettings()
    model: ModelSettings = ModelSettings()
    generation: GenerationSettings = GenerationSettings()
    picture: PictureSettings = PictureSettings()
    memory: MemorySettings = MemorySettings()
    server: ServerSettings = ServerSettings()


def visual_token_budget(detail: str | int) -> int:
    """Turn "fast", "balanced", "fine" or a number into visual tokens per picture."""
    return IMAGE_DETAILS[detail] if isinstance(detail, str) else detail


def config_names() -> tuple[str, ...]:
    """Names of the settings files that come with the app."""
    return tuple(sorted(path.stem for path in CONFIG_FOLDER.glob("*.toml")))


def load_settings(
    name_or_path: str | Path | None = None,
    overrides: Mapping[str, object] | None = None,
    sources: Mapping[str, str] | None = None,
) -> Settings:
    """Read a settings file and put the flags over it.

    Args:
        name_or_path: a name in configs/, a TOML file, or None for "default"
            ("space" inside a Hugging Face Space).
        overrides: "section.key" to value; None means that the flag was not given.
        sources: "section.key" to where its value came from, when not from its flag in FLAGS.
    Raises: ConfigError that names every fault at once.
    """
    if name_or_path is None:
        name_or_path = "space" if os.environ.get("SPACE_ID") else "default"
    path = _find_file(name_or_path)
    content = _read_toml(path)
    given = {key: value for key, value in (overrides or {}).items() if value is not None}
    origins = {key: (sources or {}).get(key) or FLAGS.get(key, "a flag") for key in given}
    faults = _apply_overrides(content, given)
    in_file = bool(faults)
    try:
        settings = Settings.model_validate(content)
    except ValidationError as error:
        faults += [_describe(fault, origins) for fault in error.errors()]
        in_file = in_file or any(_name(fault) not in given for fault in error.errors())
    if faults:
        lines = "\n".join(f"- {fault}" for fault in faults)
        which = f"The settings in {path}" if in_file else "These settings"
        raise ConfigError(f"{which} cannot be used:\n{lines}")
    return settings


def _find_file(name_or_path: str | Path) -> Path:
    path = Path(os.path.expanduser(name_or_path))  # unlike Path's, never fails
    is_name = isinstance(name_or_path, str) and path.name == name_or_path and not path.suffix
    if is_name and name_or_path in config_names():
        return CONFIG_FOLDER / f"{name_or_path}.toml"
    if os.path.isfile(path):  # unlike Path's, False for a name too long for a file
        return path
    known = ", ".join(config_names())
    hint = did_you_mean(path.stem, config_names())
    raise ConfigError(
        f'There are no settings "{name_or_path}"{hint or "."} '
        f"Give the path of a TOML file, or one of: {known}."
    )


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not text in UTF-8; save it as UTF-8.") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}.") from error


def _apply_overrides(content: dict[str, Any], given: Mapping[str, object]) -> list[str]:
    """Put flags into the file's content; returns faults of flags that fit nowhere."""
    faults = []
    for name, value in given.items():
        section, _, key = name.partition(".")
        table = content.setdefault(section, {})
        if isinstance(table, dict):
            table[key] = value
        else:
            faults.append(f"{name} cannot be set: [{section}] in the file is not a table")
    return faults


def _name(fault: Any) -> str:
    """Name the key that a pydantic fault is about: "server.port"."""
    return ".".join(str(part) for part in fault["loc"])


def _describe(fault: Any, origins: Mapping[str, str]) -> str:
    """Say one pydantic fault in words, with the nearest valid name."""
    location = tuple(str(part) for part in fault["loc"])
    name = _name(fault)
    source = f" (from {origins[name]})" if name in origins else ""
    if fault["type"] == "extra_forbidden":
        return f"{name}{source} is unknown{_nearest_key(location)}"
    if fault["type"] in ("model_type", "model_attributes_type", "dict_type"):
        return f"[{name}] must be a table of keys, not {fault['input']!r}"
    message = fault["msg"].removeprefix("Value error, ").replace("Input should", "must")
    message = message.replace("must be a valid integer", "must be a whole number")
    expected = fault.get("ctx", {}).get("expected", "")
    choices = [part.strip(" '") for part in expected.replace(" or ", ",").split(",")]
    hint = did_you_mean(str(fault["input"]), choices)
    return f"{name}{source} = {fault['input']!r}: {message}{hint}"


def _sections() -> Iterator[tuple[str, type[BaseModel]]]:
    for name, field in Settings.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield name, field.annotation


def _nearest_key(location: tuple[str, ...]) -> str:
    """Find the key that was probably meant, in its own section first, then anywhere."""
    sections = dict(_sections())
    if len(location) == 1:
        return did_you_mean(location[0], sections) or _elsewhere(location[0])
    key = location[-1]
    return did_you_mean(key, sections[location[0]].model_fields) or _elsewhere(key)


def _elsewhere(key: str) -> str:
    homes = [name for name, section in _sections() if key in section.model_fields]
    return f"; {key} belongs in [{homes[0]}]" if homes else ""


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return "; did you mean "..."?" with the nearest of the names, or an empty string."""
    matches = difflib.get_close_matches(name, list(names), n=1, cutoff=0.5)
    return f'; did you mean "{matches[0]}"?' if matches else ""
