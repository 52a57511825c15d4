"""`--engine openai` from the flags to the page and the terminal, over a second copy of this app."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import REPOSITORY
from fake_engine import FakeEngine, wait_until
from fake_upstream import Make, Upstream, question, read
from pictures_to_send import png
from served_api import serving

import demo
from vlm import choose_engine
from vlm.chat import AskRequest, Message, ModelState, Sampling
from vlm.commands import ask, batch
from vlm.config import Settings
from vlm.engine import Engine
from vlm.errors import ConfigError
from vlm.images import open_picture
from vlm.remote.engine import RemoteEngine
from vlm.ui import serve
from vlm.ui.answer_line import answer_line
from vlm.ui.conversation import Turn
from vlm.ui.header import header_html
from vlm.ui.panel import panel_html
from vlm.ui.serve import describe_state
from vlm.ui.texts import EN, ZH, Texts

pytest_plugins = ("remote_fixtures",)
GREEDY = Sampling(temperature=0.0, presence_penalty=0.0, max_new_tokens=16)


@pytest.fixture(scope="module")
def local(bundled_folder: Path) -> Iterator[Engine]:
    """The engine of this process with the built-in model, ready."""
    values = {"model": {"model": str(bundled_folder), "precision": "fp32", "context_tokens": 1024}}
    engine = Engine(Settings.model_validate(values))
    wait_until(lambda: engine.state().stage == "ready", timeout_s=120)
    yield engine
    engine.close()


def test_a_second_copy_of_the_app_answers_like_the_model_here(
    local: Engine, make_remote: Make
) -> None:
    picture = open_picture(png("red", (256, 256)))
    chat = [Message("user", "What colour is the background?", (picture,))]
    with serving(local) as url:
        remote = make_remote(url)
        assert remote.state().model == local.state().model
        for asked in ("How many shapes are there?", "背景是什么颜色？"):
            # Its detail is the served copy's own setting, the balanced one.
            request = AskRequest("a", tuple(chat), GREEDY)
            here, last, _ = read(local.ask(replace(request, conversation_id="here")))
            there, end, _ = read(remote.ask(request))
            assert there == here != ""
            assert last.stats is not None and end.stats is not None
            for name in ("prompt_tokens", "visual_tokens", "new_tokens", "finish_reason"):
                assert getattr(end.stats, name) == getattr(last.stats, name), name
            chat += [Message("assistant", here), Message("user", asked)]


def test_flags_choose_the_engine(upstream: Upstream) -> None:
    for module in (serve, ask, batch):
        parser = argparse.ArgumentParser()
        module.add_arguments(parser)
        flags = ["--engine", "openai", "--base-url", upstream.url, "--model", "other"]
        flags += ["-q", "?", "--out", "x", "y"] if module is batch else []
        flags += ["-q", "?"] if module is ask else []
        settings = module.read_settings(parser.parse_args(flags))
        assert (settings.engine.kind, settings.engine.base_url) == ("openai", upstream.url)
        assert settings.model.model == "other" and settings.engine.api_key_env == ""
    engine = choose_engine.make_engine(settings)
    assert isinstance(engine, RemoteEngine)
    engine.close()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--engine", "openai"], "--base-url"),
        (["--base-url", "http://gpu:8000/v1"], "Add --engine openai"),
        (["--engine", "opnai"], 'did you mean "openai"'),
        (["--engine", "openai", "--base-url", "http://a:s3cret@gpu"], "must hold no name"),
        (
            ["--engine", "openai", "--base-url", "http://gpu", "--api-key-env", "sk-s3cret"],
            "never the key itself",
        ),
    ],
)
@pytest.mark.parametrize("command", [[], ["ask", "-q", "?"]])
def test_flags_that_do_not_fit_end_the_start_with_a_sentence(
    command: list[str], flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert demo.main([*command, *flags]) in (1, 2)
    told = capsys.readouterr()
    assert said in told.err and "s3cret" not in told.err + told.out


def test_asking_a_server_imports_no_torch(upstream: Upstream) -> None:
    code = (
        "import sys, demo\n"
        "flags = ['ask', '-q', 'Hi', '--engine', 'openai', '--base-url']\n"
        f"code = demo.main([*flags, {upstream.url!r}])\n"
        "sys.exit('torch was imported' if 'torch' in sys.modules else code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "A red circle.\n"
    assert f"Remote: lab/first-2B at {upstream.host}." in done.stderr
    assert "[stop] 226 prompt tokens, first word after" in done.stderr
    assert done.stderr.endswith(f"12 new tokens, lab/first-2B at {upstream.host}\n")


def test_json_of_a_server_that_counts_nothing(
    upstream: Upstream, capsys: pytest.CaptureFixture[str]
) -> None:
    upstream.packets = [packet for packet in upstream.packets if b"usage" not in packet]
    flags = ["ask", "-q", "Hi", "--engine", "openai", "--base-url", upstream.url]
    assert demo.main([*flags, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["answer"] == "A red circle." and told["decode_tps"] == 0
    assert demo.main(flags) == 0
    assert "token" not in capsys.readouterr().err.partition("[stop]")[2]


@pytest.mark.parametrize("texts", [EN, ZH])
def test_the_page_says_where_the_model_is_and_shows_no_made_up_number(
    texts: Texts, upstream: Upstream, make_remote: Make
) -> None:
    engine = make_remote(upstream.url)
    state, memory = engine.state(), FakeEngine().memory()
    header, panel = header_html(state, texts), panel_html(memory, state, texts)
    assert f"first-2B · {texts.ready}" in header and upstream.host in header
    assert upstream.host in panel and texts.server_hint in panel
    assert texts.precision not in panel and texts.conversations not in panel
    assert describe_state(state).endswith(state.notice)
    assert f"lab/first-2B at {upstream.host} · " in describe_state(state)
    turn = Turn(Message("user", "a"), stats=read(engine.ask(question()))[1].stats)
    assert texts.token_counts_of_server.format(prompt=226, new=12) in answer_line([turn], texts)
    upstream.packets = [packet for packet in upstream.packets if b"usage" not in packet]
    turn = Turn(Message("user", "a"), stats=read(engine.ask(question()))[1].stats)
    line = answer_line([turn], texts)
    assert line.count("<td>–</td>") == 5  # picture, prompt, rate, tokens in and out
    assert "0 ms" not in line.partition("</summary>")[0]


def test_the_model_here_needs_no_flags() -> None:
    choose_engine.check_engine(Settings())
    with pytest.raises(ConfigError, match="Add --engine openai"):
        choose_engine.check_engine(Settings.model_validate({"engine": {"api_key_env": "MY_KEY"}}))
    assert "at" not in describe_state(ModelState("ready", model="m", precision="fp32")).split()
