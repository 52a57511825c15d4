"""Read the boxes and points that Qwen3-VL writes into an answer, and say them in pixels.

The model writes JSON with places in thousandths of the picture's sides. It comes fenced,
between sentences, cut off by the token limit or slightly broken, so this reads what is there
instead of asking for valid JSON, in time that grows with the length of the text only.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field

SCALE = 1000
"""The far edge of a picture in the model's own places."""
MOST_BOXES = 500
"""No honest answer has more; what comes after is left unread."""
LONGEST_LABEL = 80

_BOX_KEYS = ("bbox_2d", "bbox", "box_2d", "box")
_POINT_KEYS = ("point_2d", "point")
# The earlier of these names an object when several are given.
_LABEL_KEYS = ("label", "name", "text_content", "text", "description", "category", "class")
_DEEPEST = 32

# Every alternative takes all it looked at: no character is read more than twice.
_TOKEN = re.compile(
    r"""\s*+(?:
      (?P<string>"(?:[^"\\]|\\.)*+(?:"|\\?\Z) | '(?:[^'\\]|\\.)*+(?:'|\\?\Z))
    | (?P<number>[-+]?\d++(?:\.\d*+)?(?:[eE][-+]?\d++)?)
    | (?P<sign>[][{},:])
    | (?P<word>[^\s"'{},:\[\]]++)
    )""",
    re.VERBOSE | re.DOTALL,
)
_STRING = re.compile(r"""(["'])((?:[^\\]|\\.)*?)(\1?)\\?\Z""", re.DOTALL)
_OBJECT = re.compile(r"""\{\s*+(?=["'}])""")
_COLON = re.compile(r"\s*+:")
_NEXT_MEMBER = re.compile(r"[,{}]")
_NUMBER = re.compile(r"[-+]?\d++(?:\.\d*+)?(?:[eE][-+]?\d++)?")


@dataclass(frozen=True)
class Box:
    """A box, or a point when both its corners are the same place."""

    label: str
    """What is there, in the model's words: one line, at most 80 characters; may be empty."""
    x1: float
    y1: float
    x2: float
    y2: float
    """Left, top, right and bottom, 0..1000 of the picture's width and height."""
    is_point: bool = False

    def in_pixels(self, width_px: int, height_px: int) -> tuple[int, int, int, int]:
        """Place it on a picture: (left, top, right, bottom), a box never without an area."""
        left, right = _span(self.x1, self.x2, width_px, self.is_point)
        top, bottom = _span(self.y1, self.y2, height_px, self.is_point)
        return left, top, right, bottom


def _span(low: float, high: float, side_px: int, is_point: bool) -> tuple[int, int]:
    first = min(side_px - 1, round(low * side_px / SCALE))
    return first, first if is_point else max(first + 1, round(high * side_px / SCALE))


def read_boxes(answer: str) -> list[Box]:
    """Find the boxes and points in an answer, in its order; none in most answers."""
    return list(dict.fromkeys(_Reader(answer).read()))


def boxes_json(boxes: Sequence[Box], name: str, width_px: int, height_px: int) -> str:
    """Write boxes as JSON with places in px of a picture of this name and size."""
    lines = []
    for box in boxes:
        left, top, right, bottom = box.in_pixels(width_px, height_px)
        place: dict[str, object] = (
            {"point_2d": [left, top]} if box.is_point else {"bbox_2d": [left, top, right, bottom]}
        )
        lines.append("    " + json.dumps(place | {"label": box.label}, ensure_ascii=False))
    head = {"picture": name, "width_px": width_px, "height_px": height_px}
    fields = [f"  {json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in head.items()]
    listed = "[\n" + ",\n".join(lines) + "\n  ]" if lines else "[]"
    return "{\n" + ",\n".join([*fields, f'  "boxes": {listed}']) + "\n}\n"


@dataclass
class _Object:
    """What is known of one JSON object."""

    places: list[list[float]] = field(default_factory=list)
    label: str = ""
    label_rank: int = len(_LABEL_KEYS)

    def boxes(self) -> list[Box]:
        """The boxes it stands for."""
        found = [_box(self.label, place) for place in self.places]
        return [box for box in found if box is not None]


class _Reader:
    """Goes once through a text; outside of objects, only the next object counts."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._open: list[_Object] = []
        self._boxes: list[Box] = []

    def read(self) -> list[Box]:
        """Read all, or until there are enough."""
        while len(self._boxes) < MOST_BOXES:
            if not self._open:
                start = _OBJECT.search(self._text, self._at)
                if start is None:
                    break
                self._at = start.end()
                self._open.append(_Object())
            if not self._read_member():
                break
        for item in self._open:
            self._boxes += item.boxes()
        return self._boxes[:MOST_BOXES]

    def _read_member(self) -> bool:
        """Take what comes next inside an object; False at the end of the text."""
        token = _TOKEN.match(self._text, self._at)
        if token is None:
            return False
        self._at = token.end()
        if token["sign"] == "{":
            if len(self._open) == _DEEPEST:
                self._boxes += self._open.pop(0).boxes()
            self._open.append(_Object())
        elif token["sign"] == "}":
            self._boxes += self._open.pop().boxes()
        elif token["string"]:
            self._read_value(_unquote(token["string"])[0])
        elif not token["sign"]:
            # Not JSON: go on with the next member of this object.
            after = _NEXT_MEMBER.search(self._text, self._at)
            self._at = after.start() if after else len(self._text)
        return True

    def _read_value(self, key: str) -> None:
        """Read the value of a key that says something; others are passed over."""
        colon = _COLON.match(self._text, self._at)
        if colon is None:
            return
        self._at = colon.end()
        item = self._open[-1]
        if key in _BOX_KEYS:
            item.places += _joined(self._read_places())
        elif key in _POINT_KEYS:
            item.places += self._read_places()
        elif key in _LABEL_KEYS and _LABEL_KEYS.index(key) <= item.label_rank:
            label = self._read_label()
            if label:
                item.label, item.label_rank = label, _LABEL_KEYS.index(key)

    def _read_label(self) -> str:
        token = _TOKEN.match(self._text, self._at)
        if token is None or token["sign"]:
            return ""
        self._at = token.end()
        if token["string"]:
            text, is_whole = _unquote(token["string"])
            return _one_line(text if is_whole else text + "…")
        return "" if token["word"] == "null" else _one_line(token[0])

    def _read_places(self) -> list[list[float]]:
        """Read "[x, y, x, y]", a list of such lists, or the same within quotes."""
        groups: list[list[float]] = [[]]
        depth = 0
        while (token := _TOKEN.match(self._text, self._at)) is not None:
            if token["number"]:
                groups[-1].append(float(token["number"]))
            elif token["string"] and (numbers := _NUMBER.findall(token["string"])):
                groups[-1] += map(float, numbers)
            elif token["sign"] in ("[", "]"):
                groups.append([])
                depth += 1 if token["sign"] == "[" else -1
            elif token["sign"] != ",":
                break  # a bracket is missing; what follows is read as usual
            self._at = token.end()
            if depth <= 0:
                break
        else:
            # Cut off: the last number may lack digits, and a wrong box is worse than none.
            groups.pop()
        return [group for group in groups if len(group) in (2, 4)]


def _joined(places: list[list[float]]) -> list[list[float]]:
    """Two corners that came as two lists are one box."""
    return [places[0] + places[1]] if [len(place) for place in places] == [2, 2] else places


def _box(label: str, place: list[float]) -> Box | None:
    """Make a box of 2 or 4 numbers; None when it is outside of the picture."""
    if not all(map(math.isfinite, place)):
        return None
    xs, ys = sorted(place[0::2]), sorted(place[1::2])
    if xs[-1] < 0 or ys[-1] < 0 or xs[0] > SCALE or ys[0] > SCALE:
        return None
    x1, x2, y1, y2 = (min(SCALE, max(0.0, n)) for n in (xs[0], xs[-1], ys[0], ys[-1]))
    return Box(label, x1, y1, x2, y2, is_point=len(place) == 2)


def _unquote(quoted: str) -> tuple[str, bool]:
    """Give the text of a string and whether its end was there; escapes are undone."""
    match = _STRING.match(quoted)
    inner, is_whole = (match[2], bool(match[3])) if match else (quoted, True)
    if "\\" not in inner:
        return inner, is_whole
    try:
        return str(json.loads(f'"{inner}"', strict=False)), is_whole
    except ValueError:
        return inner.replace("\\", ""), is_whole


def _one_line(text: str) -> str:
    """Bring a label to one line without control characters, and bound its length."""
    text = " ".join(text[: 4 * LONGEST_LABEL].split())
    text = "".join(c for c in text if unicodedata.category(c)[0] != "C")
    return text if len(text) <= LONGEST_LABEL else text[: LONGEST_LABEL - 1] + "…"
