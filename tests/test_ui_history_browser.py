"""Chats outlive a reload and a restart in the browser that had them, and in no other."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from browser_tab import Tab
from fake_engine import FakeEngine, Script
from PIL import Image
from playwright.sync_api import Browser, expect

import demo
from vlm.config import Settings
from vlm.ui.look import launch_options
from vlm.ui.texts import EN

pytest_plugins = ("browser_fixtures",)
# Gradio leaves event loops open.
pytestmark = [pytest.mark.browser, pytest.mark.filterwarnings("ignore::ResourceWarning")]

Draw = Callable[..., Path]
OpenTab = Callable[..., Tab]
HISTORY_JS = Path(demo.__file__).parent / "vlm" / "ui" / "history.js"


def test_a_reload_shows_the_chat_again_with_its_full_picture_and_its_half_answer(
    open_tab: OpenTab, engine: FakeEngine, draw: Draw
) -> None:
    tab = open_tab()
    tab.ask("What is it?", draw("red", (900, 600)))
    engine.script = Script(words=("One ", "two ", "three"), by_step=True)
    tab.start("Count")
    engine.step(2)
    expect(tab.answers.last).to_contain_text("One two")
    tab.reload()
    expect(tab.questions.last).to_have_text("Count")
    expect(tab.answers.last).to_contain_text(EN.stopped)
    expect(tab.answers.last).to_contain_text("One two")
    expect(tab.pictures).to_have_count(1)
    expect(tab.page.locator("#note")).to_be_empty()
    engine.script = Script()
    tab.ask("And now?")
    first, *_, last = engine.requests
    told = ["What is it?", "A red circle.", "Count", "One two ", "And now?"]
    assert [message.text for message in last.messages] == told
    assert last.messages[0].pictures == first.messages[0].pictures
    tab.button("clear").click()
    expect(tab.answers).to_have_count(0)
    tab.reload()
    expect(tab.earlier_chats()).to_have_count(1)
    expect(tab.answers).to_have_count(0)


def served(engine: FakeEngine, port: int) -> tuple[Any, str]:
    page = demo.build_demo(engine, Settings())
    options = launch_options(Settings())
    # Without the check that the page answers within 3 s, which a busy machine fails.
    _, url, _ = page.launch(
        quiet=True, prevent_thread_lock=True, server_port=port, _frontend=False, **options
    )
    return page, str(url)


def test_a_restart_of_the_server_leaves_the_chat_and_the_open_question(
    open_tab: OpenTab, serve: Callable[..., str], draw: Draw, free_port: int
) -> None:
    first, second = FakeEngine(), FakeEngine()
    page, url = served(first, free_port)
    tab = open_tab(url)
    tab.ask("What is it?", draw("red", (900, 600)))
    first.may_run.clear()
    tab.start("Anyone there?")
    tab.page.wait_for_function("keptChats.all().chats[0]?.messages.length === 3")
    tab.page.goto("about:blank")  # Gradio's page would reload by itself, at a time of its own
    first.close()
    page.close(verbose=False)
    page, _ = served(second, free_port)
    try:
        tab.load()
        expect(tab.questions).to_have_text(["", "What is it?", "Anyone there?"])
        expect(tab.answers).to_have_text(["A red circle.", f"⚠️ {EN.unanswered}"])
        expect(tab.pictures).to_have_count(1)
        ratio = tab.pictures.evaluate("(image) => image.naturalWidth / image.naturalHeight")
        assert ratio == pytest.approx(1.5, abs=0.01)
        expect(tab.page.locator("#note")).to_have_text(EN.small_pictures)
        tab.button("retry").click()
        expect(tab.answers.last).to_have_text("A red circle.")
        tab.wait_for_end()
        expect(tab.page.locator("#note")).to_be_empty()
        (request,) = second.requests
        told = [message.text for message in request.messages]
        assert told == ["What is it?", "A red circle.", "Anyone there?"]
        assert [message.token_ids for message in request.messages] == [None] * 3
        assert request.messages[0].pictures[0].image.size == (512, 341)
        assert request.conversation_id != first.requests[0].conversation_id
        tab.page.evaluate("localStorage.setItem('vlm-chats', 'broken:value')")
        tab.reload()
        expect(tab.answers).to_have_count(2)
        tab.ask("Still here?")
    finally:
        second.close()
        page.close(verbose=False)


def test_earlier_chats_are_listed_opened_and_deleted(
    open_tab: OpenTab, engine: FakeEngine, draw: Draw
) -> None:
    tab = open_tab()
    rows = tab.earlier_chats()
    expect(tab.page.locator(".kept")).to_contain_text(EN.no_earlier)
    for text in ("<b>first</b>", "second", "third"):
        tab.ask(text, draw("red"))
        tab.button("clear").click()
        expect(tab.answers).to_have_count(0)
    expect(rows.locator("span")).to_have_text(["third", "second", "<b>first</b>"])
    rows.last.locator(".open").click()
    expect(tab.questions).to_have_text(["", "<b>first</b>"])
    expect(rows.locator("span")).to_have_text(["third", "second"])
    tab.ask("go on")
    told = [message.text for message in engine.requests[-1].messages]
    assert told == ["<b>first</b>", "A red circle.", "go on"]
    tab.button("undo").click()
    tab.box.fill("")
    rows.first.locator(".drop").click()
    expect(rows).to_have_count(2)
    rows.first.locator(".drop").click()
    expect(rows.locator("span")).to_have_text(["second"])
    tab.button("clear").click()
    expect(rows.locator("span")).to_have_text(["<b>first</b>", "second"])
    tab.page.locator("#language").click()
    expect(tab.page.locator("#earlier-chats")).to_contain_text("以前的对话")
    drop_all = tab.page.locator(".kept > .drop")
    expect(drop_all).to_have_text("全部删除")
    drop_all.click()
    drop_all.click()
    expect(rows).to_have_count(0)
    tab.reload()
    expect(tab.earlier_chats()).to_have_count(0)
    assert tab.page.evaluate("keptChats.all().chats") == []


def test_chats_are_saved_as_files_and_taken_from_them(
    open_tab: OpenTab, engine: FakeEngine, draw: Draw, tmp_path: Path
) -> None:
    tab = open_tab()
    tab.ask("What is it?", draw("red", (900, 600)))
    tab.earlier_chats()
    with tab.page.expect_download() as download:
        tab.page.locator("#kept-zip").click()
    with zipfile.ZipFile(download.value.path()) as archive:
        text, picture = archive.namelist()
        assert "A red circle." in archive.read(text).decode()
        assert Image.open(io.BytesIO(archive.read(picture))).size == (900, 600)
    with tab.page.expect_download() as download:
        tab.page.locator("#kept-json").click()
    path = tmp_path / "chats.json"
    download.value.save_as(path)
    assert "token" not in path.read_text()

    other = open_tab()
    rows, note = other.earlier_chats(), other.page.locator("#note")
    choose = other.page.locator("#earlier-chats input[type=file]")
    hostile = tmp_path / "hostile.json"
    file = json.loads(path.read_text())
    file["chats"][0]["messages"][0]["role"] = "system"
    hostile.write_text(json.dumps(file))
    choose.set_input_files(hostile)
    expect(note).to_have_text(EN.not_imported)
    choose.set_input_files(path)
    expect(note).to_have_text(EN.imported.format(count=1))
    expect(rows).to_have_count(1)
    rows.locator(".open").click()
    expect(other.questions.last).to_have_text("What is it?")
    expect(other.pictures).to_have_count(1)


def test_tabs_of_one_browser_share_the_list_and_another_browser_sees_nothing(
    open_tab: OpenTab, engine: FakeEngine
) -> None:
    tab, stranger = open_tab(), open_tab()
    tab.ask("my secret")
    beside = Tab(tab.page.context.new_page(), tab.url).load()
    expect(beside.earlier_chats().locator("span")).to_have_text(["my secret"])
    expect(beside.answers).to_have_count(0)
    beside.ask("from beside")
    expect(tab.earlier_chats().locator("span")).to_have_text(["from beside"])
    beside.reload()
    expect(beside.questions).to_have_text("from beside")
    tab.reload()
    expect(tab.questions).to_have_text("my secret")
    beside.page.close()
    tab.page.close()
    again = Tab(tab.page.context.new_page(), tab.url).load()
    expect(again.questions).to_have_text("from beside")
    stranger.reload()
    expect(stranger.earlier_chats()).to_have_count(0)
    expect(stranger.answers).to_have_count(0)


BOUNDS = """() => {
    const picture = "p".repeat(1000);
    const chat = (n) => ({
        id: `${n}`, time_s: n, title: "", pictures: {a: picture, b: picture},
        messages: [{role: "user", text: `${n}`, pictures: ["a", "b"]}],
    });
    const all = Array.from({length: 30}, (_, n) => chat(n));
    const left = (longest, shown) => keptChats.merged([], {put: all}, shown, longest)
        .map((one) => [Number(one.id), Object.keys(one.pictures).length]);
    const size = (longest) => new Blob([JSON.stringify(
        {chats: keptChats.merged([], {put: all}, "0", longest)})]).size;
    const own = {...chat(3), id: "imported"};
    return {
        all: left(1e6, "0").length, most: left(60000, "0"), few: left(30000, "0"),
        none: left(50, "0"), sizes: [60000, 30000, 3000].map(size),
        import: keptChats.merged(all, {put: [own], isImport: true}, "0").length,
        drop: keptChats.merged(all, {drop: ["3"]}, "0").length,
        late: keptChats.merged(all, {put: [{...chat(3), pictures: {}, time_s: 99}]}, "0")[0],
    };
}"""


def test_the_oldest_chats_fall_out_first_then_pictures_and_the_shown_chat_last(
    browser: Browser,
) -> None:
    page = browser.new_page()
    page.add_script_tag(content=HISTORY_JS.read_text(encoding="utf-8"))
    found = page.evaluate(BOUNDS)
    assert found["all"] == 30
    most = found["most"]
    assert most[0][0] == 29 and most[-1] == [0, 2], "the shown one stays, though it is the oldest"
    assert 20 < len(most) < 30 and {pictures for _, pictures in most} == {2}
    few = found["few"]
    assert len(few) == 20 and few[0] == [29, 2] and few[-1] == [0, 2] and few[-2] == [11, 0]
    assert found["none"] == []
    assert all(
        size <= longest for size, longest in zip(found["sizes"], (60000, 30000, 3000), strict=True)
    )
    assert found["import"] == 30, "a chat that is there already is not taken twice"
    assert found["drop"] == 29
    assert len(found["late"]["pictures"]) == 2, "pictures are sent once"
    foreign = """async () => Promise.all([null, "text", 5, [], {version: 1}, {chats: {}},
        {version: 1, chats: [null, {id: 5}, {id: "x", time_s: "soon", messages: 1}]}
    ].map(async (kept) => (await keptChats.begin(kept)).is_broken))"""
    assert page.evaluate(foreign) == [False] + [True] * 6
    while_opening = """async (chat) => {
        const beside = new BroadcastChannel("vlm-chats");
        for (const owner of ["", "another visitor"])
            beside.postMessage({owner, change: {put: [{...chat, id: owner}]}});
        await new Promise((done) => setTimeout(done, 200));
        await keptChats.begin(null);
        keptChats.take(JSON.stringify(
            {number: 1, owner: "", present: "x", token: "x", language: "en", words: {}}));
        return keptChats.all().chats.map((one) => one.id);
    }"""
    chat = {"time_s": 1, "title": "", "messages": [], "pictures": {}}
    assert page.evaluate(while_opening, chat) == [""], "told by another tab of the same visitor"
    page.close()
