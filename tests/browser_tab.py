"""One browser tab on the page, in words of the tests."""

from __future__ import annotations

import base64
import io
from pathlib import Path

from PIL import Image
from playwright.sync_api import Error, Locator, Page, expect


class Tab:
    """What a person sees and does on the page."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.box = page.locator("#box textarea")
        self.send = page.locator("#box .submit-button")
        self.stop = page.locator("#box .stop-button")
        self.thumbnails = page.locator("#box .thumbnail-item")
        self.questions = page.locator("#chat [data-testid=user]")
        self.answers = page.locator("#chat [data-testid=bot]")
        self.pictures = page.locator("#chat .message-row img")
        self.line = page.locator(".answer-line summary")
        self.toast = page.locator(".toast-body")

    def load(self) -> Tab:
        """Open the page and wait until it is whole."""
        self.page.goto(self.url)
        expect(self.page.locator(".panel")).to_be_visible()
        return self

    def empty(self) -> None:
        """Bring the chat back to its beginning; a tab that a failed test broke is loaded again."""
        try:
            self.button("clear").click()
            expect(self.answers).to_have_count(0)
            expect(self.box).to_have_value("")
            expect(self.thumbnails).to_have_count(0)
            expect(self.toast).to_have_count(0)
        except (AssertionError, Error):
            self.page.evaluate("localStorage.clear(), sessionStorage.clear()")
            self.load()

    def reload(self) -> Tab:
        """Load the page again, as a person does."""
        self.page.reload()
        expect(self.page.locator(".panel")).to_be_visible()
        return self

    def earlier_chats(self) -> Locator:
        """The rows of the folded list, unfolded."""
        fold = self.page.locator("#earlier-chats")
        if not fold.locator(".kept").is_visible():
            fold.locator("button.label-wrap").click()
        return fold.locator("li")

    def button(self, name: str) -> Locator:
        """The button under the chat: retry, undo or clear."""
        return self.page.locator(f"#{name}")

    def message_button(self, role: str, index: int, name: str) -> Locator:
        """The copy or edit button beside a message of "user" or "bot"; pictures count too."""
        panels = self.page.locator(f"#chat .{role}-row + .message-buttons")
        return panels.nth(index).locator("button").nth(0 if name == "copy" else 1)

    def clipboard(self) -> str:
        """What was copied last; the tab needs the permission to read it."""
        return str(self.page.evaluate("navigator.clipboard.readText()"))

    def attach(self, *files: Path) -> None:
        """Add picture files to the input and wait until they are there."""
        before = self.thumbnails.count()
        with self.page.expect_file_chooser() as chooser:
            self.page.locator("#box [data-testid=upload-button]").click()
        chooser.value.set_files(list(files))
        expect(self.thumbnails).to_have_count(before + len(files))

    def ask(self, text: str, *files: Path) -> None:
        """Send a question and wait until its answer is complete."""
        self.start(text, *files)
        self.wait_for_end()

    def start(self, text: str, *files: Path) -> None:
        """Send a question and wait until the chat shows it."""
        count = self.answers.count()
        if files:
            self.attach(*files)
        self.box.fill(text)
        self.box.press("Enter")
        expect(self.answers).to_have_count(count + 1)

    def wait_for_end(self) -> None:
        """Wait until no answer is being written."""
        expect(self.stop).to_have_count(0)
        expect(self.send).to_be_visible()


def picture_event(kind: str, colour: str) -> str:
    """JavaScript that pastes or drops a PNG of one colour on the input."""
    buffer = io.BytesIO()
    Image.new("RGB", (64, 48), colour).save(buffer, "PNG")
    data = base64.b64encode(buffer.getvalue()).decode()
    event = {
        "paste": "new ClipboardEvent('paste', {clipboardData: items, bubbles: true})",
        "drop": "new DragEvent('drop', {dataTransfer: items, bubbles: true, cancelable: true})",
    }[kind]
    return f"""(target) => {{
        const bytes = Uint8Array.from(atob("{data}"), c => c.charCodeAt(0));
        const items = new DataTransfer();
        items.items.add(new File([bytes], "{colour}.png", {{type: "image/png"}}));
        target.dispatchEvent({event});
    }}"""
