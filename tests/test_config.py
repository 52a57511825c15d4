"""Settings: every fault is named at once, with the nearest valid name; flags win."""

from pathlib import Path

import pytest

from vlm.config import Settings, load_settings, visual_token_budget
from vlm.errors import ConfigError
from vlm.units import GIB, MIB


def write(folder: Path, text: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return path


def fault_lines(path: Path, overrides: dict[str, object] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_settings(path, overrides)
    return str(caught.value).splitlines()[1:]


def test_the_model_cards_sampling_is_the_default() -> None:
    generation = load_settings().generation
    chosen = (generation.temperature, generation.top_p, generation.top_k)
    assert (*chosen, generation.presence_penalty) == (0.7, 0.8, 20, 1.5)


def test_all_faults_are_named_at_once(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """
        [model]
        precision = "int9"
        temperature = 0.5
        [generation]
        temprature = 0.5
        top_p = 1.5
        [picture]
        image_detail = "ballanced"
        [memory]
        kv_cache_bytes = "2 GiX"
        [sever]
        port = 80
        """,
    )
    assert fault_lines(path) == [
        "- model.precision = 'int9': must be 'auto', 'fp32', 'mixed' or 'int8'; "
        'did you mean "int8"?',
        "- model.temperature is unknown; temperature belongs in [generation]",
        "- generation.top_p = 1.5: must be less than or equal to 1",
        '- generation.temprature is unknown; did you mean "temperature"?',
        '- picture.image_detail = \'ballanced\': must be "fast", "balanced", "fine" or a number; '
        'did you mean "balanced"?',
        "- memory.kv_cache_bytes = '2 GiX': '2 GiX' is not a size; "
        'write a number of bytes or, say, "2 GiB"',
        '- sever is unknown; did you mean "server"?',
    ]


@pytest.mark.parametrize(
    "line",
    [
        'server.port = "8080"',
        "server.port = true",
        "server.port = 0",
        "server.port = 65536",
        "generation.temperature = nan",
        "generation.temperature = inf",
        "generation.temperature = -0.1",
        "generation.top_p = 0.0",
        "generation.seed = 1.5",
        "generation.loop_guard = 1",
        "picture.image_detail = true",
        "picture.image_detail = 8",
        "picture.image_detail = 512.0",
        "picture.image_detail = 100000",
        "memory.kv_cache_bytes = -1",
        'memory.kv_cache_bytes = "-1 GiB"',
        'model.model = ""',
        "model = 3",
    ],
)
def test_a_wrong_type_or_value_is_refused(tmp_path: Path, line: str) -> None:
    (fault,) = fault_lines(write(tmp_path, line))
    assert line.split(" ")[0].split(".")[0] in fault


def test_a_key_outside_every_section_is_told_its_home(tmp_path: Path) -> None:
    assert fault_lines(write(tmp_path, "port = 80")) == [
        "- port is unknown; port belongs in [server]"
    ]


def test_sizes_may_be_written_in_words(tmp_path: Path) -> None:
    text = '[memory]\nkv_cache_bytes = "1.5 GiB"\nfeature_cache_bytes = 1_000\n'
    memory = load_settings(write(tmp_path, text)).memory
    assert memory.kv_cache_bytes == 3 * GIB // 2
    assert memory.feature_cache_bytes == 1000
    assert memory.min_free_bytes == 512 * MIB  # what the file leaves out keeps its default


def test_flags_win_over_the_file_and_none_is_no_flag(tmp_path: Path) -> None:
    path = write(tmp_path, '[model]\nprecision = "fp32"\n[server]\nport = 8000\n')
    overrides = {"model.precision": None, "server.port": 9000, "picture.image_detail": 300}
    settings = load_settings(path, overrides)
    assert settings.model.precision == "fp32"
    assert settings.server.port == 9000
    assert settings.picture.max_visual_tokens == 300


def test_a_bad_flag_is_told_apart_from_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "[generation]\ntop_k = -1\n")
    assert fault_lines(path, {"server.port": 0, "server.prt": 1}) == [
        "- generation.top_k = -1: must be greater than or equal to 0",
        "- server.port (from --port) = 0: must be greater than or equal to 1",
        '- server.prt (from a flag) is unknown; did you mean "port"?',
    ]


def test_a_file_that_is_right_is_not_blamed_for_a_flag(tmp_path: Path) -> None:
    path = write(tmp_path, "[server]\nport = 8000\n")
    with pytest.raises(ConfigError) as caught:
        load_settings(path, {"server.port": 99999})
    assert str(caught.value) == (
        "These settings cannot be used:\n"
        "- server.port (from --port) = 99999: must be less than or equal to 65535"
    )
    with pytest.raises(ConfigError, match=r"server\.port \(from PORT\) = 0") as caught:
        load_settings(path, {"server.port": 0}, {"server.port": "PORT"})
    path.write_text("[model]\nprecision = 'int9'\n")
    with pytest.raises(ConfigError, match=f"The settings in {path} cannot be used"):
        load_settings(path, {"server.port": 0})


def test_a_flag_under_a_broken_section_is_a_fault_not_a_crash(tmp_path: Path) -> None:
    faults = fault_lines(write(tmp_path, "model = 3"), {"model.precision": "fp32"})
    assert any("model.precision cannot be set" in fault for fault in faults)


@pytest.mark.parametrize("name", ["~nobody-has-this-name/x.toml", "a" * 5000])
def test_names_that_no_file_can_have(name: str) -> None:
    with pytest.raises(ConfigError, match="There are no settings"):
        load_settings(name)


def test_an_unknown_name_lists_the_known_ones() -> None:
    told = r'no settings "defalt"; did you mean "default"\? Give'
    with pytest.raises(ConfigError, match=told) as e:
        load_settings("defalt")
    assert "default, fast, fine, low_memory, space" in str(e.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"[model\n", "not valid TOML: .*line 1"), (b"\xff\xfe", "UTF-8")],
)
def test_a_file_that_is_no_toml_says_so(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "mine.toml").write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        load_settings(tmp_path / "mine.toml")


def test_a_folder_or_missing_file_says_so(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.toml"):
        with pytest.raises(ConfigError, match="Give the path of a TOML file"):
            load_settings(path)


def test_a_byte_order_mark_from_windows_is_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(b"\xef\xbb\xbf[server]\nport = 81\n")
    assert load_settings(path).server.port == 81


def test_a_file_named_like_a_setting_in_the_working_folder_does_not_shadow_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fast").write_text("[server]\nport = 81\n")
    monkeypatch.chdir(tmp_path)
    assert load_settings("fast").picture.image_detail == "fast"


def test_a_space_gets_its_own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings().server.host == "127.0.0.1"
    monkeypatch.setenv("SPACE_ID", "someone/space")
    assert load_settings().server.host == "0.0.0.0"
    assert load_settings("default").server.host == "127.0.0.1"


def test_image_detail_is_a_number_of_visual_tokens() -> None:
    assert [visual_token_budget(d) for d in ("fast", "balanced", "fine", 77)] == [
        256,
        512,
        1280,
        77,
    ]


def test_a_seed_below_zero_means_a_new_one_each_time() -> None:
    assert load_settings().generation.fixed_seed is None
    assert load_settings(None, {"generation.seed": 0}).generation.fixed_seed == 0


def test_settings_cannot_be_changed_later() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Settings().server.port = 1  # type: ignore[misc]
