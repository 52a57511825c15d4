"""`ask` on the terminal: the answer on stdout, all else on stderr, exit codes scripts trust."""

import argparse
import io
import json
import time

import pytest
from PIL import Image

from vlm.chat import MemoryReading, ModelState, Piece
from vlm.commands import ask, asking
from vlm.commands.status_line import StatusLine
from vlm.errors import GenerationError
from vlm.stats import AnswerClock

KEYS = {
    "answer", "finish_reason", "prompt_tokens", "visual_tokens", "cached_tokens", "ttft_s",
    "prefill_tps", "decode_tps", "peak_rss_bytes", "model", "precision",
}  # fmt: skip


def arguments(*words):
    parser = argparse.ArgumentParser()
    ask.add_arguments(parser)
    return parser.parse_args(words)


@pytest.fixture
def red(tmp_path):
    path = tmp_path / "red.png"
    Image.new("RGB", (160, 128), (220, 30, 30)).save(path)
    return str(path)


READY = ModelState("ready", "Loading it.", model="m", precision="fp32", notice="Small.")


class FakeEngine:
    """Answers "red" in two pieces; `on_read` may raise at any read, `states` come one by one."""

    def __init__(self, settings=None, on_read=lambda count: None, states=(READY,), tokens=(1, 2)):
        self.on_read, self.reads = on_read, 0
        self.states, self.tokens = list(states), tokens
        self.requests, self.is_stopped, self.is_closed = [], False, False
        self.asked_at_stage = ""

    def ask(self, request):
        self.requests.append(request)
        self.asked_at_stage = self.states[0].stage
        return self

    def stop(self):
        self.is_stopped = True

    def __iter__(self):
        clock = AnswerClock()
        pieces = [
            Piece("loading", progress=0.5),
            Piece("vision", notices=("Only the first frame is used.",)),
            Piece("decode", text="re"),
            Piece("decode", text="d"),
        ]
        while not self.is_stopped and self.reads < len(pieces):
            self.reads += 1
            self.on_read(self.reads)
            yield pieces[self.reads - 1]
        for _ in (*self.tokens, "the stop token"):
            clock.token()
            time.sleep(0.002)
        reason = "cancelled" if self.is_stopped else "stop"
        yield Piece("done", stats=clock.stats(reason, self.tokens))

    def state(self):
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        if isinstance(state, BaseException):
            raise state
        return state

    def memory(self):
        return MemoryReading(1, 2, 3, 4, 5, 6, 7, False, 8.0, 9, 10)

    def close(self):
        self.is_closed = True


@pytest.fixture
def fake(monkeypatch):
    engine = FakeEngine()
    monkeypatch.setattr(ask, "make_engine", lambda settings: engine)
    return engine


def test_json_is_one_object_with_the_promised_keys(bundled_folder, red, capsys):
    words = ["--model", str(bundled_folder), "--precision", "fp32", "--temperature", "0"]
    code = ask.run(arguments(red, "-q", "What colour is it?", "--json", *words))
    out, _ = capsys.readouterr()
    result = json.loads(out)
    assert code == 0
    assert set(result) == KEYS
    assert result["precision"] == "fp32" and result["model"]
    assert result["visual_tokens"] == 20 and result["cached_tokens"] == 0
    assert result["peak_rss_bytes"] > 50_000_000
    assert result["ttft_s"] > 0 and result["prefill_tps"] > 0


def test_the_answer_streams_to_stdout_and_the_rest_goes_to_stderr(fake, red, capsys):
    assert ask.run(arguments(red, "-q", "What?")) == 0
    out, err = capsys.readouterr()
    assert out == "red\n"
    assert "Only the first frame is used." in err and "Small." in err
    assert "Looking at the picture" in err and "m in fp32" in err
    assert fake.is_closed


def test_flags_reach_the_request(fake, red, capsys):
    words = "--max-new-tokens 7 --temperature 0.25 --seed 3 --detail fast".split()
    ask.run(arguments(red, red, "-q", "Same?", "--system", "Be brief.", *words))
    request = fake.requests[0]
    assert [message.role for message in request.messages] == ["system", "user"]
    assert request.messages[0].text == "Be brief."
    assert len(request.messages[1].pictures) == 2
    assert request.sampling.max_new_tokens == 7
    assert (request.sampling.temperature, request.sampling.seed) == (0.25, 3)
    assert request.max_visual_tokens == 256


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["missing.png", "-q", "x"], "There is no file missing.png."),
        ([__file__, "-q", "x"], f"{__file__}: "),
        (["-q", "x", "--config", "nonsense"], "no settings"),
        (["-q", "x", "--precision", "fp7"], "model.precision"),
        (["-q", "x", "--temperature", "nan"], "generation.temperature"),
        (["-q", "x", "--detail", "finest"], "fine"),
        (["-q", "x", "--model", "no such model"], "no such model"),
        (["-q", "", "--model", "bundled"], ""),
    ],
)
def test_an_error_is_a_sentence_on_stderr_and_exit_code_1(words, sentence, capsys):
    assert ask.run(arguments(*words)) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert sentence in err and "Traceback" not in err
    assert err.strip()


def test_an_error_in_the_middle_keeps_what_was_said(monkeypatch, red, capsys):
    def fail(count):
        if count == 4:
            raise GenerationError("It broke. Ask again.")

    engine = FakeEngine(on_read=fail)
    monkeypatch.setattr(ask, "make_engine", lambda settings: engine)
    assert ask.run(arguments(red, "-q", "What?")) == 1
    out, err = capsys.readouterr()
    assert out.startswith("re") and "It broke. Ask again." in err
    assert engine.is_closed


def test_a_missing_question_is_a_usage_error():
    with pytest.raises(SystemExit) as caught:
        arguments("picture.png")
    assert caught.value.code == 2


@pytest.mark.parametrize("as_json", [False, True])
def test_ctrl_c_stops_the_answer_and_keeps_what_came(as_json, monkeypatch, red, capsys):
    def interrupt(count):
        if count == 4:
            raise KeyboardInterrupt

    engine = FakeEngine(on_read=interrupt)
    monkeypatch.setattr(ask, "make_engine", lambda settings: engine)
    code = ask.run(arguments(red, "-q", "What?", *(["--json"] if as_json else [])))
    out, err = capsys.readouterr()
    assert code == 130
    assert engine.is_stopped and engine.is_closed
    if as_json:
        assert json.loads(out)["finish_reason"] == "cancelled"
        assert json.loads(out)["answer"] == "re"
    else:
        assert out == "re\n"
    assert "Traceback" not in err


COMING = (
    ModelState("finding", "Looking for the model."),
    ModelState("downloading", "Downloading m", 2**30, 4 * 2**30, eta_s=90.0),
    ModelState("loading", "Loading m.", 1, 2),
)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_the_question_is_asked_when_the_model_is_there(monkeypatch, red, capsys):
    engine = FakeEngine(states=(*COMING, READY))
    monkeypatch.setattr(ask, "make_engine", lambda settings: engine)
    assert ask.run(arguments(red, "-q", "What?")) == 0
    assert engine.asked_at_stage == "ready", "else its time to first token holds the loading"
    out, err = capsys.readouterr()
    assert out == "red\n"
    assert err.startswith("Looking for the model.\nDownloading m\nLoading m.\nNote: Small.\n")


def test_a_terminal_sees_how_far_the_model_is(monkeypatch):
    terminal = Terminal()
    asking.wait_for_model(FakeEngine(states=(*COMING, READY)), StatusLine(terminal))
    shown = terminal.getvalue()
    assert "Downloading m: 25%, 1.00 GiB of 4.00 GiB, about 00:01:30 left" in shown
    assert "Loading m: 50%" in shown and shown.endswith("\r\x1b[KNote: Small.\n")


def test_ctrl_c_while_the_model_is_coming_leaves_at_once(monkeypatch, red, capsys):
    engine = FakeEngine(states=(*COMING, KeyboardInterrupt()))
    monkeypatch.setattr(ask, "make_engine", lambda settings: engine)
    assert ask.run(arguments(red, "-q", "What?")) == 130
    assert engine.is_closed and not engine.requests
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(("tokens", "words"), [((1,), "1 new token, "), ((), "0 new tokens, ")])
def test_an_answer_of_one_token_has_no_rate(tokens, words, monkeypatch, red, capsys):
    monkeypatch.setattr(ask, "make_engine", lambda settings: FakeEngine(tokens=tokens))
    ask.run(arguments(red, "-q", "What?"))
    err = capsys.readouterr().err
    assert words in err and "per second" not in err


def test_an_answer_of_two_tokens_has_a_rate(fake, red, capsys):
    ask.run(arguments(red, "-q", "What?"))
    assert "2 new tokens at " in capsys.readouterr().err


def test_a_terminal_sees_one_changing_line_and_a_log_only_new_lines():
    terminal, log = Terminal(), io.StringIO()
    for stream in (terminal, log):
        status = StatusLine(stream)
        for progress in (0.25, 0.5):
            status.show(Piece("prefill", progress=progress))
        status.show(Piece("decode", text="a"))
    assert terminal.getvalue().count("\r") == 3 and "50%" in terminal.getvalue()
    assert log.getvalue().count("Reading the question") == 1 and "\r" not in log.getvalue()


def test_a_terminal_that_does_not_know_a_character_shows_a_question_mark(fake, red, monkeypatch):
    latin = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    monkeypatch.setattr("sys.stdout", latin)
    assert ask.run(arguments(red, "-q", "\u7ea2?")) == 0
    latin.write("\u7ea2")
    latin.flush()
    assert latin.buffer.getvalue().endswith(b"?")
