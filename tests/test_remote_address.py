"""Where the server is and which key it gets: what is taken, what is refused, what is shown."""

from __future__ import annotations

import pytest

from vlm.config import EngineSettings
from vlm.errors import ConfigError
from vlm.remote.address import read_address


@pytest.mark.parametrize(
    ("given", "url", "host"),
    [
        ("http://gpu:8000/v1", "http://gpu:8000/v1", "gpu:8000"),
        ("http://gpu:8000", "http://gpu:8000/v1", "gpu:8000"),
        ("http://gpu:8000/", "http://gpu:8000/v1", "gpu:8000"),
        ("https://api.example.org/openai/", "https://api.example.org/openai", "api.example.org"),
        ("http://gpu/v1/chat/completions", "http://gpu/v1", "gpu"),
        ("http://[::1]:8000/v1", "http://[::1]:8000/v1", "[::1]:8000"),
    ],
)
def test_an_address_is_read_however_it_is_written(given: str, url: str, host: str) -> None:
    address = read_address(EngineSettings(kind="openai", base_url=given))
    assert (address.url, address.host, address.key) == (url, host, "")
    assert address.is_this_machine == ("::1" in host)


@pytest.mark.parametrize(
    "given",
    ["", "gpu:8000", "ftp://gpu", "http://", "http://gpu:99999", "http://a b/v1", "http://[::1"],
)
def test_what_is_no_address_is_refused(given: str) -> None:
    with pytest.raises(ConfigError, match="--base-url"):
        read_address(EngineSettings(kind="openai", base_url=given))


@pytest.mark.parametrize(
    "given",
    [
        "http://ann:s3cret@gpu/v1",
        "http://s3cret@gpu",
        "http://gpu/v1?key=s3cret",
        "http://gpu#s3cret",
    ],
)
def test_an_address_with_a_secret_is_refused_without_showing_it(given: str) -> None:
    with pytest.raises(ConfigError, match="must hold no name, password") as refused:
        read_address(EngineSettings(kind="openai", base_url=given))
    assert "s3cret" not in str(refused.value)


def test_the_key_comes_from_the_named_variable_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-other")
    settings = EngineSettings(kind="openai", base_url="http://gpu")
    assert read_address(settings).key == ""
    monkeypatch.setenv("MY_KEY", " sk-1 \n")
    address = read_address(settings.model_copy(update={"api_key_env": "MY_KEY"}))
    assert address.key == "sk-1" and "sk-1" not in repr(address)
    assert address.redact("wrong: sk-1") == "wrong: ***"


@pytest.mark.parametrize("given", ["sk-abc-123", "MISSING_KEY"])
def test_a_key_in_place_of_a_name_is_refused(given: str) -> None:
    settings = EngineSettings(kind="openai", base_url="http://gpu", api_key_env=given)
    with pytest.raises(ConfigError, match="environment variable") as refused:
        read_address(settings)
    assert ("sk-abc-123" in str(refused.value)) is False
