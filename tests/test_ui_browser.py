"""The page in a real browser over the FakeEngine: what a person does and what must come of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from browser_tab import Tab, picture_event
from fake_engine import FakeEngine, Script, wait_until
from PIL import Image
from playwright.sync_api import expect

from vlm.chat import ModelState, Piece
from vlm.errors import ContextLengthError
from vlm.model_source import BUNDLED_NOTICE
from vlm.ui.texts import EN, ZH, Texts
from vlm.units import GIB

pytest_plugins = ("browser_fixtures",)
# Gradio leaves event loops open.
pytestmark = [pytest.mark.browser, pytest.mark.filterwarnings("ignore::ResourceWarning")]

Draw = Callable[..., Path]
OpenTab = Callable[..., Tab]


def test_question_shows_at_once_and_the_answer_streams(tab: Tab, engine: FakeEngine) -> None:
    engine.script = Script(words=("One ", "two ", "three."), by_step=True)
    tab.start("Count to three")
    expect(tab.questions).to_have_text("Count to three")
    expect(tab.box).to_have_value("")
    engine.step(2)
    expect(tab.answers).to_have_text(re.compile(r"^\s*One two\s*$"))
    engine.step()
    tab.wait_for_end()
    expect(tab.answers).to_have_text("One two three.")
    expect(tab.line).to_have_text(
        "1.2 s to the first word (picture 0 ms, prompt 0.2 s) · 8.2 tokens/s · "
        "0 visual, 3 new, 0 reused tokens · complete"
    )
    assert [(m.role, m.text) for m in engine.requests[0].messages] == [("user", "Count to three")]


def test_history_is_raw_text_and_exact_token_ids(tab: Tab, engine: FakeEngine) -> None:
    engine.script = Script(words=("a < b, ", "**bold** ", "<i>"))
    tab.ask("first")
    tab.ask("1. *second* <b>")
    told = engine.requests[1].messages
    assert [m.text for m in told] == ["first", "a < b, **bold** <i>", "1. *second* <b>"]
    assert told[1].token_ids == (1, 2, 3)
    expect(tab.answers.first).to_have_text("a < b, bold <i>")
    expect(tab.questions.last).to_have_text("1. *second* <b>")
    expect(tab.line).to_contain_text("14 reused")


def test_enter_sends_and_shift_enter_breaks_the_line(tab: Tab, engine: FakeEngine) -> None:
    tab.box.press_sequentially("one")
    tab.box.press("Shift+Enter")
    tab.box.press_sequentially("two")
    assert engine.requests == []
    tab.box.press("Enter")
    tab.wait_for_end()
    wait_until(lambda: engine.requests)
    assert engine.requests[0].messages[0].text == "one\ntwo"


def test_stop_keeps_the_half_answer_marked_and_known_to_the_model(
    tab: Tab, engine: FakeEngine
) -> None:
    engine.script = Script(words=tuple(f"{n} " for n in range(200)), by_step=True)
    tab.start("Count")
    engine.step(3)
    expect(tab.answers).to_contain_text("0 1 2")
    tab.stop.click()
    tab.wait_for_end()
    assert engine.answers[0].ended.wait(5)
    expect(tab.answers).to_contain_text("Stopped here.")
    engine.script = Script()
    tab.ask("Go on")
    half = engine.requests[1].messages[1]
    assert (half.text, half.token_ids) == ("0 1 2 ", (1, 2, 3))


def test_stop_during_the_wait_ends_it(tab: Tab, engine: FakeEngine) -> None:
    engine.may_run.clear()
    tab.start("Anyone there?")
    tab.stop.click()
    tab.wait_for_end()
    expect(tab.answers).to_contain_text("Stopped here.")


def test_retry_asks_the_same_again(tab: Tab, engine: FakeEngine, draw: Draw) -> None:
    tab.ask("What is it?", draw("red"))
    engine.script = Script(words=("Another ", "answer."))
    tab.button("retry").click()
    expect(tab.answers).to_have_text("Another answer.")
    tab.wait_for_end()
    first, second = engine.requests
    assert [m.text for m in second.messages] == ["What is it?"]
    assert second.messages[0].pictures == first.messages[0].pictures
    assert second.conversation_id == first.conversation_id
    expect(tab.pictures).to_have_count(1)


def test_undo_gives_the_question_and_its_picture_back(
    tab: Tab, engine: FakeEngine, draw: Draw
) -> None:
    tab.ask("first")
    tab.ask("second", draw("red"))
    tab.button("undo").click()
    expect(tab.answers).to_have_count(1)
    expect(tab.pictures).to_have_count(0)
    expect(tab.box).to_have_value("second")
    expect(tab.thumbnails).to_have_count(1)
    tab.box.press("Enter")
    tab.wait_for_end()
    expect(tab.answers).to_have_count(2)
    told = engine.requests[-1].messages
    assert [m.text for m in told] == ["first", "A red circle.", "second"]
    assert len(told[-1].pictures) == 1


def test_undo_twice_then_a_new_picture(tab: Tab, engine: FakeEngine, draw: Draw) -> None:
    tab.ask("with picture", draw("red"))
    tab.ask("without")
    tab.button("undo").click()
    expect(tab.answers).to_have_count(1)
    tab.box.fill("")
    tab.button("undo").click()
    expect(tab.answers).to_have_count(0)
    expect(tab.button("undo")).to_be_disabled()
    tab.thumbnails.locator("button").click()
    expect(tab.thumbnails).to_have_count(0)
    tab.ask("new", draw("blue"))
    (message,) = engine.requests[-1].messages
    assert message.pictures[0].image.getpixel((0, 0)) == (0, 0, 255)
    expect(tab.pictures).to_have_count(1)


def test_an_earlier_question_can_be_edited_and_later_ones_are_dropped(
    tab: Tab, engine: FakeEngine, draw: Draw
) -> None:
    tab.ask("What *is* it?", draw("red"))
    tab.ask("second")
    tab.box.fill("a draft")
    tab.message_button("user", 1, "edit").click()
    note = tab.page.locator(".note")
    expect(note).to_contain_text("Editing question 1.")
    expect(tab.box).to_have_value("What *is* it?")
    expect(tab.thumbnails).to_have_count(1)
    expect(tab.answers).to_have_count(2)
    tab.page.locator("#cancel-edit").click()
    expect(tab.box).to_have_value("a draft")
    expect(note).to_have_count(0)
    tab.message_button("user", 1, "edit").click()
    expect(tab.thumbnails).to_have_count(1)
    tab.box.fill("What colour?")
    tab.box.press("Enter")
    expect(tab.answers).to_have_count(1)
    tab.wait_for_end()
    expect(tab.questions.last).to_have_text("What colour?")
    expect(note).to_have_count(0)
    first, edited = engine.requests[0], engine.requests[-1]
    assert [message.text for message in edited.messages] == ["What colour?"]
    assert len(edited.messages[0].pictures) == 1
    assert edited.conversation_id == first.conversation_id
    tab.ask("and then?")
    told = [message.text for message in engine.requests[-1].messages]
    assert told == ["What colour?", "A red circle.", "and then?"]


def test_messages_are_copied_as_they_were_written(engine: FakeEngine, open_tab: OpenTab) -> None:
    tab = open_tab(permissions=["clipboard-read", "clipboard-write"])
    engine.script = Script(words=("`a` < **b** ", "& <i>\n\n```\nx < 1\n```"))
    tab.ask("1. *Which* <tag>?")
    for role, text in (
        ("user", "1. *Which* <tag>?"),
        ("bot", "`a` < **b** & <i>\n\n```\nx < 1\n```"),
    ):
        tab.message_button(role, 0, "copy").click()
        wait_until(lambda text=text: tab.clipboard() == text)
    tab.page.locator("#chat .top-panel").first.locator("button").last.click()
    whole = "Question:\n1. *Which* <tag>?\n\nAnswer:\n`a` < **b** & <i>\n\n```\nx < 1\n```"
    wait_until(lambda: tab.clipboard() == whole)


def test_clear_forgets_the_chat_even_while_it_is_answered(tab: Tab, engine: FakeEngine) -> None:
    engine.script = Script(words=("word ",) * 200, by_step=True)
    tab.start("Talk")
    tab.button("clear").click()
    expect(tab.answers).to_have_count(0)
    assert engine.answers[0].ended.wait(5)
    assert engine.forgotten == [engine.requests[0].conversation_id]
    engine.script = Script()
    tab.ask("Talk")
    expect(tab.answers).to_have_count(1)
    wait_until(lambda: len(engine.requests) == 2)
    assert [m.text for m in engine.requests[1].messages] == ["Talk"]
    assert engine.requests[1].conversation_id != engine.requests[0].conversation_id


def test_several_pictures_keep_their_order_and_stay_for_the_follow_up(
    tab: Tab, engine: FakeEngine, draw: Draw
) -> None:
    tab.ask("Compare", draw("red"), draw("blue"), draw("lime"))
    tab.ask("And now?")
    expect(tab.pictures).to_have_count(3)
    pictures = engine.requests[1].messages[0].pictures
    colours = [picture.image.getpixel((5, 5)) for picture in pictures]
    assert colours == [(255, 0, 0), (0, 0, 255), (0, 255, 0)]
    expect(tab.line).to_contain_text("180 visual,")


def test_a_picture_is_shown_once_and_upright(tab: Tab, engine: FakeEngine, draw: Draw) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    tab.ask("Which way?", draw("red", (1600, 800), "phone.jpg", exif=exif))
    expect(tab.pictures).to_have_count(1)
    size = "image => image.decode().then(() => [image.naturalWidth, image.naturalHeight])"
    assert tab.pictures.evaluate(size) == [384, 768]
    assert engine.requests[0].messages[0].pictures[0].image.height > 800


def test_a_picture_dropped_beside_the_input_goes_into_it(tab: Tab, engine: FakeEngine) -> None:
    tab.page.locator("#chat").evaluate(picture_event("drop", "red"))
    wait_until(lambda: len(engine.read) == 1)
    tab.start("What is it?")
    tab.wait_for_end()
    assert len(engine.requests[0].messages[0].pictures) == 1


@pytest.mark.parametrize("kind", ["paste", "drop"])
def test_pictures_come_by_paste_and_drop(tab: Tab, engine: FakeEngine, kind: str) -> None:
    target = tab.box if kind == "paste" else tab.page.locator("#box .full-container")
    target.evaluate(picture_event(kind, "blue"))
    expect(tab.thumbnails).to_have_count(1)
    tab.ask("What colour?")
    (picture,) = engine.requests[0].messages[0].pictures
    assert picture.image.getpixel((0, 0)) == (0, 0, 255)


def test_a_photo_comes_from_the_webcam(engine: FakeEngine, open_tab: OpenTab) -> None:
    tab = open_tab()
    tab.box.fill("Who is it?")
    tab.page.get_by_text("Take a photo").click()
    tab.page.locator("#webcam").get_by_text("Click to Access Webcam").click()
    tab.page.wait_for_function("document.querySelector('#webcam video')?.videoWidth > 0")
    tab.page.locator("#webcam button[aria-label='capture photo']").click()
    expect(tab.thumbnails).to_have_count(1)
    tab.box.press("Enter")
    tab.wait_for_end()
    wait_until(lambda: engine.requests)
    assert len(engine.requests[0].messages[0].pictures) == 1
    assert engine.requests[0].messages[0].text == "Who is it?"


def test_a_long_paste_stays_text(tab: Tab, engine: FakeEngine) -> None:
    text = "word " * 1000
    tab.box.evaluate(
        """(box, text) => { box.focus(); const items = new DataTransfer();
        items.setData('text/plain', text);
        const paste = new ClipboardEvent('paste',
            {clipboardData: items, bubbles: true, cancelable: true});
        if (box.dispatchEvent(paste)) document.execCommand('insertText', false, text); }""",
        text,
    )
    tab.box.press("Enter")
    wait_until(lambda: engine.requests)
    assert engine.requests[0].messages[0].text == text.strip()


def test_ten_fast_clicks_send_once(tab: Tab, engine: FakeEngine, draw: Draw) -> None:
    engine.script = Script(by_step=True)
    tab.attach(draw("red"))
    tab.box.fill("Only once")
    tab.send.evaluate("button => { for (let i = 0; i < 10; i++) button.click(); }")
    expect(tab.answers).to_have_count(1)
    engine.step(3)
    tab.wait_for_end()
    tab.page.wait_for_timeout(1000)
    assert len(engine.requests) == 1
    expect(tab.questions).to_have_count(2)  # the picture and its question


def test_a_full_queue_keeps_the_input_and_says_so(tab: Tab, engine: FakeEngine, draw: Draw) -> None:
    engine.is_full = True
    tab.attach(draw("red"))
    tab.box.fill("May I?")
    tab.box.press("Enter")
    expect(tab.answers).to_contain_text("the limit is <16>")
    expect(tab.box).to_have_value("May I?")
    expect(tab.thumbnails).to_have_count(1)
    expect(tab.send).to_be_visible()
    engine.is_full = False
    tab.box.press("Enter")
    expect(tab.answers).to_have_text("A red circle.")
    expect(tab.pictures).to_have_count(1)


@pytest.mark.parametrize("locale", ["en-GB", "zh-CN"])
def test_a_broken_picture_is_named_and_taken_out_and_the_rest_is_kept(
    engine: FakeEngine, open_tab: OpenTab, draw: Draw, tmp_path: Path, locale: str
) -> None:
    tab = open_tab(locale=locale)
    broken = tmp_path / "<img src=x onerror=window.bad=1> cat.png"
    broken.write_bytes(b"\x89PNG\r\n\x1a\n but no more")
    tab.attach(draw("red"), broken, draw("blue"))
    tab.box.fill("What is it?")
    tab.box.press("Enter")
    note = tab.page.get_by_role("alert")
    expect(note).to_contain_text("cat.png")
    why = "This PNG file is damaged" if locale == "en-GB" else "PNG 文件已损坏或不完整"
    expect(note).to_contain_text(why)
    expect(tab.thumbnails).to_have_count(2)
    expect(tab.box).to_have_value("What is it?")
    assert engine.requests == []
    assert tab.page.evaluate("window.bad") is None
    tab.box.press("Enter")
    tab.wait_for_end()
    expect(note).to_have_count(0)
    colours = [p.image.getpixel((0, 0)) for p in engine.requests[0].messages[0].pictures]
    assert colours == [(255, 0, 0), (0, 0, 255)]


def test_an_error_is_shown_and_the_question_comes_back(tab: Tab, engine: FakeEngine) -> None:
    engine.script = Script(words=(), error=ContextLengthError("9000 tokens; the limit is 8192."))
    tab.start("Too long")
    expect(tab.answers).to_contain_text("9000 tokens; the limit is 8192.")
    expect(tab.box).to_have_value("Too long")
    engine.script = Script()
    tab.box.press("Enter")
    expect(tab.answers).to_have_text("A red circle.")
    assert [m.text for m in engine.requests[1].messages] == ["Too long"]


def test_an_unexpected_error_tells_no_secrets_and_the_next_question_works(
    tab: Tab, engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine.script = Script(words=("Half ",), error=ZeroDivisionError("secret path"))
    tab.start("Break")
    expect(tab.answers).to_contain_text("The model stopped unexpectedly. See the terminal")
    expect(tab.answers).not_to_contain_text("secret")
    assert "secret path" in caplog.text
    engine.script = Script()
    tab.button("retry").click()
    expect(tab.answers).to_have_text("A red circle.")
    expect(tab.box).to_have_value("")


def test_nothing_typed_or_answered_runs_or_loads_from_outside(tab: Tab, engine: FakeEngine) -> None:
    bad = '<img src=x onerror="window.bad=1"><script>window.bad=1</script>'
    remote = "![a](http://192.0.2.1/a.png) <img src=http://192.0.2.1/b.png>"
    engine.script = Script(words=(bad, "\n\n", remote, "\n\n$$<img src=http://192.0.2.1/c>$$"))
    tab.ask(f"{bad} {remote}")
    expect(tab.questions).to_have_text(f"{bad} {remote}")
    expect(tab.answers).to_contain_text('<img src=x onerror="window.bad=1">')
    assert tab.page.evaluate("window.bad") is None
    assert tab.page.locator("#chat .message img").count() == 0


def test_markdown_tables_code_and_latex_show_and_prices_stay(tab: Tab, engine: FakeEngine) -> None:
    engine.script = Script(
        words=(
            "| a | b |\n|---|---|\n| 1 | 2 |\n\n",
            "It costs $5 and $6, or \\(x_1 < y_1\\).\n\n",
            "\\[\n\\frac{a_1}{b_1}\n\\]\n\n$$E = mc^2$$\n\n<thinking> <b>tag</b>\n\n",
            "```json\n[1, 2]\n```",
        )
    )
    tab.ask("Show")
    expect(tab.answers.locator("table td").first).to_have_text("1")
    expect(tab.answers.locator(".katex")).to_have_count(3)
    expect(tab.answers.locator(".katex-display")).to_have_count(2)
    expect(tab.answers.locator(".katex-error")).to_have_count(0)
    expect(tab.answers.locator("annotation").first).to_have_text("x_1 < y_1")
    expect(tab.answers).to_contain_text("<thinking> <b>tag</b>")
    expect(tab.answers.locator("pre")).to_contain_text("[1, 2]")
    expect(tab.answers).to_contain_text("It costs $5 and $6, or")


def test_the_wait_is_told_and_moves(tab: Tab, engine: FakeEngine) -> None:
    engine.script = Script(
        before=(
            Piece("queued", queue_position=2),
            Piece("vision", progress=0.4),
            Piece("prefill", progress=0.75),
        ),
        by_step=True,
    )
    tab.start("Look")
    for words in ("2 questions are ahead", "Reading the picture: 40 %", "the question: 75 %"):
        engine.step()
        expect(tab.answers).to_contain_text(words)
    engine.step(3)
    expect(tab.answers).to_have_text("A red circle.")


def test_the_page_is_there_while_the_model_loads_and_keeps_a_question(
    engine: FakeEngine, open_tab: OpenTab
) -> None:
    engine.may_run.clear()
    engine.model_state = ModelState(
        "downloading", "Fetching.", done_bytes=GIB, total_bytes=4 * GIB, eta_s=90.0
    )
    tab = open_tab()
    header = tab.page.locator("#header")
    expect(header).to_contain_text("Downloading the model")
    expect(header).to_contain_text("25 % · 1.00 GiB / 4.00 GiB · about 1 min 30 s left")
    tab.start("Already?")
    expect(tab.answers).to_contain_text("still loading")
    engine.model_state = ModelState("ready", model="org/Name", precision="mixed")
    engine.may_run.set()
    expect(tab.answers).to_have_text("A red circle.")
    expect(header).to_contain_text("Name · Ready")


def test_a_model_that_failed_says_why_and_can_be_tried_again(
    engine: FakeEngine, open_tab: OpenTab
) -> None:
    engine.model_state = ModelState("failed", "No room: 2 GiB free, <5 GiB> needed.")
    tab = open_tab()
    expect(tab.page.get_by_role("alert")).to_have_text("No room: 2 GiB free, <5 GiB> needed.")
    tab.page.locator("#retry-load").click()
    wait_until(lambda: engine.load_retries == 1)
    engine.model_state = ModelState("ready", model="org/Name")
    expect(tab.page.locator("#retry-load")).to_be_hidden()


def test_the_built_in_model_cannot_be_overlooked(engine: FakeEngine, open_tab: OpenTab) -> None:
    engine.model_state = ModelState("ready", model="Shapes", is_bundled=True)
    tab = open_tab()
    banner = tab.page.locator(".banner.bundled")
    expect(banner).to_contain_text("This is the small built-in model")
    expect(banner).to_contain_text("For the real one")


def test_the_panel_shows_memory_and_follows_it(tab: Tab, engine: FakeEngine) -> None:
    panel = tab.page.locator(".panel")
    for words in ("This app: 3.00 GiB", "weights 2.00 GiB", "chats 128 MiB", "pictures 64.0 MiB"):
        expect(panel).to_contain_text(words)
    for words in ("rest 832 MiB", "5.00 GiB of 8.00 GiB free", "93 % of 2 cores", "mixed"):
        expect(panel).to_contain_text(words)
    engine.rss_bytes = 4 * GIB
    expect(panel).to_contain_text("This app: 4.00 GiB")


def test_detail_and_settings_reach_the_engine(engine: FakeEngine, open_tab: OpenTab) -> None:
    tab = open_tab()
    tab.page.get_by_label("Fine").check()
    tab.page.get_by_text("Answer settings").click()
    temperature = tab.page.get_by_role("spinbutton", name="Temperature")
    temperature.fill("0")
    temperature.press("Tab")
    tab.page.get_by_label("Seed").fill("7")
    tab.page.get_by_label("Seed").press("Tab")
    tab.ask("Set")
    request = engine.requests[0]
    assert (request.max_visual_tokens, request.sampling.temperature) == (1280, 0.0)
    assert request.sampling.seed == 7


def test_a_preset_sets_the_dials_and_reset_brings_them_back(
    engine: FakeEngine, open_tab: OpenTab
) -> None:
    tab = open_tab()
    tab.page.get_by_text("Answer settings").click()
    temperature = tab.page.get_by_role("spinbutton", name="Temperature")
    expect(temperature).to_have_value("0.7")
    tab.page.get_by_label("Read text", exact=True).check()
    expect(temperature).to_have_value("0")
    expect(tab.page.get_by_label("Fine")).to_be_checked()
    tab.page.get_by_label("System prompt").fill("Answer in one word.")
    tab.ask("Set")
    request = engine.requests[0]
    assert (request.sampling.temperature, request.max_visual_tokens) == (0.0, 1280)
    assert [(m.role, m.text) for m in request.messages] == [
        ("system", "Answer in one word."),
        ("user", "Set"),
    ]
    temperature.fill("0.5")
    temperature.press("Tab")
    expect(tab.page.get_by_label("Read text", exact=True)).not_to_be_checked()
    tab.page.locator("#reset").click()
    expect(temperature).to_have_value("0.7")
    expect(tab.page.get_by_label("Balanced").first).to_be_checked()
    tab.ask("Again")
    request = engine.requests[1]
    assert request.sampling.temperature == 0.7
    assert [message.role for message in request.messages] == ["user", "assistant", "user"]


@pytest.mark.parametrize(("locale", "texts"), [("en-GB", EN), ("zh-CN", ZH)])
def test_quick_tasks_fill_in_a_prompt_and_its_preset(
    engine: FakeEngine, open_tab: OpenTab, draw: Draw, locale: str, texts: Texts
) -> None:
    tab = open_tab(locale=locale)
    tab.attach(draw("red"))
    for task in ("translate", "describe", "boxes"):
        button = tab.page.locator(f"#task-{task}")
        expect(button).to_have_text(texts.task_name(task))
        button.click()
        expect(tab.box).to_have_value(texts.task_prompt(task))
        expect(tab.thumbnails).to_have_count(1)
    tab.box.press("Enter")
    wait_until(lambda: engine.requests)
    request = engine.requests[0]
    assert (request.sampling.temperature, request.max_visual_tokens) == (0.0, 1280)
    assert request.messages[0].text == texts.task_prompt("boxes")


def test_a_sample_fills_in_its_picture_and_question(tab: Tab, engine: FakeEngine) -> None:
    tab.page.locator("#chat button.example").nth(1).click()
    expect(tab.box).to_have_value("What do a soup and a coffee cost together?")
    expect(tab.thumbnails).to_have_count(1)
    tab.box.press("Enter")
    tab.wait_for_end()
    wait_until(lambda: engine.requests)
    assert len(engine.requests[0].messages[0].pictures) == 1


def test_the_samples_are_those_that_the_loaded_model_can_answer(
    engine: FakeEngine, open_tab: OpenTab
) -> None:
    tab = open_tab()
    samples = tab.page.locator("#chat button.example")
    expect(samples).to_have_count(3)
    engine.model_state = ModelState("ready", model="Shapes", is_bundled=True)
    expect(samples).to_have_count(4)
    samples.nth(2).click()
    expect(tab.box).to_have_value("In the second picture: What shape is red?")
    expect(tab.thumbnails).to_have_count(2)


def test_a_closed_tab_stops_its_work(engine: FakeEngine, open_tab: OpenTab) -> None:
    engine.script = Script(words=("word ",) * 600, by_step=True)
    tab = open_tab()
    tab.start("Talk for a minute")
    tab.page.close()
    assert engine.answers[0].ended.wait(10)
    wait_until(lambda: engine.requests[0].conversation_id in engine.forgotten)


def test_two_visitors_never_meet(engine: FakeEngine, open_tab: OpenTab, draw: Draw) -> None:
    one, other = open_tab(), open_tab()
    for turn in range(3):
        for tab, secret in ((one, "ALPHA"), (other, "BRAVO")):
            engine.script = Script(words=(f"{secret} ", f"{turn}"))
            tab.ask(f"My word is {secret}, turn {turn}", draw("red"))
    for request in engine.requests:
        text = " ".join(message.text for message in request.messages)
        assert ("ALPHA" in text) != ("BRAVO" in text)
    expect(one.page.locator("body")).not_to_contain_text("BRAVO")
    expect(other.page.locator("body")).not_to_contain_text("ALPHA")
    assert len({request.conversation_id for request in engine.requests}) == 2


def test_chinese_by_the_browser_and_by_the_switch(engine: FakeEngine, open_tab: OpenTab) -> None:
    tab = open_tab(locale="zh-CN")
    expect(tab.page.locator("h1")).to_have_text("与图片对话")
    expect(tab.button("retry")).to_contain_text("重新回答")
    expect(tab.page.locator("#chat button.example").first).to_contain_text("描述一下这个场景")
    tab.ask("你好")
    expect(tab.line).to_contain_text("首字")
    tab.page.locator("#language").click()
    expect(tab.page.locator("h1")).to_have_text("Talk to a picture")
    expect(tab.line).to_contain_text("to the first word")
    expect(tab.answers).to_have_text("A red circle.")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_needs_no_sideways_scrolling(
    engine: FakeEngine, open_tab: OpenTab, draw: Draw, scheme: str
) -> None:
    engine.script = Script(words=("averylongword" * 30, "\n\n`" + "code " * 60 + "`"))
    tab = open_tab(viewport={"width": 390, "height": 844}, color_scheme=scheme)
    tab.ask("What is on this picture? " * 4, draw("red", (1200, 300)))
    tab.page.get_by_text("Answer settings").click()
    width = tab.page.evaluate("document.documentElement.scrollWidth")
    assert width <= 390
    detail = tab.page.locator("#detail")
    detail.scroll_into_view_if_needed()
    expect(detail).to_be_in_viewport()
    tab.page.evaluate("window.scrollTo(0, 0)")
    box = tab.box.bounding_box()
    assert box and box["y"] + box["height"] < 844, "the input is not on the first screen"


@pytest.mark.parametrize("locale", ["en-GB", "zh-CN"])
def test_the_empty_chat_of_a_phone_shows_the_input_below_any_banner(
    engine: FakeEngine, open_tab: OpenTab, locale: str
) -> None:
    why = "Qwen/Qwen3-VL-2B-Instruct was not fetched: offline mode is on (HF_HUB_OFFLINE)."
    engine.model_state = ModelState("ready", is_bundled=True, notice=f"{BUNDLED_NOTICE} {why}")
    tab = open_tab(viewport={"width": 390, "height": 844}, locale=locale)
    places = {
        name: tab.page.locator(name).bounding_box() or {}
        for name in (".banner", "#chat", "#box", "#buttons")
    }
    assert places["#buttons"]["y"] + places["#buttons"]["height"] <= 844
    assert places["#chat"]["y"] >= places[".banner"]["y"] + places[".banner"]["height"]
    assert places["#box"]["y"] >= places["#chat"]["y"] + places["#chat"]["height"]
    assert abs(places[".banner"]["width"] - places["#chat"]["width"]) <= 1
