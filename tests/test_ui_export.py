"""A zip of chats opens everywhere: safe names, readable text, the best pictures there are."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

from PIL import Image

from vlm.images import open_picture
from vlm.ui.export import write_zip
from vlm.ui.history import KeptChat, KeptMessage, picture_bytes, small_copy
from vlm.ui.texts import EN, ZH


def kept(title: str, number: int, *messages: KeptMessage, **pictures: str) -> KeptChat:
    return KeptChat(
        id=f"{number:032x}",
        time_s=1_700_000_000.0,
        title=title,
        messages=list(messages),
        pictures={key[1:]: data for key, data in pictures.items()},
    )


def test_a_zip_holds_text_and_pictures_under_safe_names(tmp_path: Path) -> None:
    picture = open_picture(Image.new("RGB", (1200, 800), "red"))
    small, key = small_copy(picture), "a" * 16
    question = KeptMessage(role="user", text="What is <b>it</b>?", pictures=[key, "b" * 16])
    answer = KeptMessage(role="assistant", text="A | b\n--|--", end="cancelled")
    here = kept("../../etc/passwd: C:\\x*?", 1, question, answer, **{f"p{key}": small})
    before = kept("图片", 2, question, **{f"p{key}": small})
    path = tmp_path / "chats.zip"
    write_zip(path, [here, before], {(here.id, key): picture.image}, EN)
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        assert names == [
            "001-2023-11-14-etc-passwd-C-x/chat.md",
            "001-2023-11-14-etc-passwd-C-x/pictures/1.webp",
            "002-2023-11-14-图片/chat.md",
            "002-2023-11-14-图片/pictures/1.webp",
        ]
        text, open_one = (archive.read(name).decode() for name in (names[0], names[2]))
        whole = Image.open(io.BytesIO(archive.read(names[1])))
        assert archive.read(names[3]) == picture_bytes(small)
    assert whole.size == (1200, 800)
    assert text == (
        "# ../../etc/passwd: C:\\x*?\n\n## Question\n\n![1](pictures/1.webp)\n\n"
        f"*{EN.picture_lost.format(count=1)}*\n\nWhat is <b>it</b>?\n\n"
        f"## Answer\n\nA | b\n--|--\n\n*{EN.stopped}*\n"
    )
    assert open_one.endswith(f"*{EN.unanswered}*\n")


def test_a_zip_is_in_the_visitors_language(tmp_path: Path) -> None:
    path = tmp_path / "chats.zip"
    write_zip(path, [kept("", 1, KeptMessage(role="user", text="你好"))], {}, ZH)
    with zipfile.ZipFile(path) as archive:
        text = archive.read(archive.namelist()[0]).decode()
    assert text == f"# {ZH.no_title}\n\n## {ZH.question}\n\n你好\n\n*{ZH.unanswered}*\n"
