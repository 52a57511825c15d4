"""Draws the pictures the built-in model learns from, and knows what is on them.

A scene is a background with one to five shapes on a 3 x 3 grid, or a printed word
or number, or both. All randomness comes from the `random.Random` that is passed in.
"""

from __future__ import annotations

import functools
import math
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

from PIL import Image, ImageDraw, ImageFont

COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (222, 32, 36),
    "orange": (246, 140, 30),
    "yellow": (248, 224, 40),
    "green": (46, 168, 62),
    "teal": (0, 132, 132),
    "blue": (40, 72, 214),
    "purple": (132, 52, 172),
    "pink": (246, 136, 186),
    "brown": (126, 74, 38),
    "gray": (132, 132, 132),
    "black": (20, 20, 20),
    "white": (248, 248, 248),
}
SHAPES = ("circle", "square", "rectangle", "triangle", "star", "cross", "heart")
POSITIONS = (
    "top left",
    "top",
    "top right",
    "left",
    "center",
    "right",
    "bottom left",
    "bottom",
    "bottom right",
)
CHARACTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
PIXELS_PER_CELL = 32
"""One visual token covers 32 x 32 px (patch 16, merge 2)."""

# Pairs that look alike on a small picture: never one on top of the other.
_TOO_CLOSE = {
    frozenset(pair)
    for pair in (
        ("red", "orange"),
        ("red", "brown"),
        ("red", "pink"),
        ("orange", "yellow"),
        ("orange", "brown"),
        ("yellow", "white"),
        ("green", "teal"),
        ("teal", "blue"),
        ("teal", "gray"),
        ("blue", "purple"),
        ("blue", "black"),
        ("purple", "black"),
        ("purple", "brown"),
        ("pink", "white"),
        ("brown", "black"),
        ("brown", "gray"),
        ("gray", "white"),
        ("gray", "black"),
    )
}
_CONSONANTS = "BCDFGHJKLMNPQRSTVWXYZ"
_VOWELS = "AEIOUY"
WORDS = tuple(
    """HELLO OPEN STOP EXIT SALE CAFE TAXI HOTEL BANK BUS CAR DOG CAT TREE FISH BIRD MILK BREAD
    TEA COFFEE APPLE LEMON SUN MOON STAR SKY RAIN SNOW WIND FIRE WATER EARTH RED BLUE GREEN GOLD
    YES NO ON OFF UP DOWN LEFT RIGHT IN OUT PUSH PULL FREE NEW OLD BIG SMALL HOT COLD FAST SLOW
    HOUSE DOOR WINDOW TABLE CHAIR BOOK PEN PAPER PHONE CLOCK TIME DAY NIGHT WEEK MONTH YEAR MAN
    WOMAN CHILD BOY GIRL KING QUEEN LOVE HOPE PEACE HAPPY SMILE DREAM MUSIC DANCE GAME PLAY WORK
    HOME CITY ROAD PARK ZOO SHOP STORE MARKET PRICE MENU SOUP RICE MEAT SALAD PIZZA CAKE JUICE
    WINE BEER GLASS CUP PLATE KNIFE FORK SPOON SALT SUGAR EGG CORN BEAN PEAR PLUM KIWI MANGO
    LION TIGER BEAR WOLF FOX HORSE COW PIG SHEEP GOAT DUCK FROG BEE ANT SHIP BOAT TRAIN PLANE
    BIKE WHEEL METAL WOOD STONE GLOBE MAP KEY LOCK BOX BAG HAT COAT SHOE SHIRT SOCK RING
    NORTH SOUTH EAST WEST ONE TWO THREE FOUR FIVE SIX SEVEN EIGHT NINE TEN ZERO MAX MIN AREA
    QUICK JUMP VIVID ZEBRA QUIZ FJORD WALTZ OXYGEN VERTEX PIXEL""".split()
)


@dataclass(frozen=True)
class Thing:
    """One object of a scene; its box is x0, y0, x1, y1 in fractions of the picture."""

    kind: str
    """A name of SHAPES, or "text"."""
    colour: str
    box: tuple[float, float, float, float]
    text: str = ""
    character_x: tuple[float, ...] = ()
    """Middle of every character of the text, as a fraction of the width."""

    @property
    def centre(self) -> tuple[float, float]:
        """Middle of the box, x and y as fractions."""
        return (self.box[0] + self.box[2]) / 2, (self.box[1] + self.box[3]) / 2

    @property
    def position(self) -> str:
        """The ninth of the picture that the middle lies in, as a name of POSITIONS."""
        x, y = self.centre
        return POSITIONS[min(2, int(y * 3)) * 3 + min(2, int(x * 3))]


@dataclass(frozen=True)
class Scene:
    """A drawn picture and the truth about it."""

    picture: Image.Image
    background: str
    things: tuple[Thing, ...]

    @property
    def shapes(self) -> tuple[Thing, ...]:
        """The things that are shapes, row by row from the top left."""
        return tuple(thing for thing in self.things if thing.kind != "text")

    @property
    def text(self) -> Thing | None:
        """The printed word or number, if there is one."""
        return next((thing for thing in self.things if thing.kind == "text"), None)


@dataclass(frozen=True)
class SceneMix:
    """How often each kind of picture is drawn; weights, not percentages."""

    shapes: float = 1.0
    text: float = 0.6
    both: float = 0.2
    one_big: float = 0.3
    crowd: float = 0.0
    """Every ninth filled: too much to talk about, but dense labels teach most from these."""
    max_shapes: int = 5
    held_out: bool = False
    """Draw only words kept away from training (True), or never those (False)."""
    words: tuple[str, ...] = field(default=WORDS)


def is_held_out(word: str) -> bool:
    """Say whether a word belongs to the test words: one in eight, by its checksum."""
    return zlib.crc32(word.encode()) % 8 == 0


def draw_word(rng: random.Random, mix: SceneMix) -> str:
    """Choose a word, a made-up word, letters or a number of 1-7 characters."""
    while True:
        choice = rng.random()
        if choice < 0.25:
            word = rng.choice(mix.words)
        elif choice < 0.50:
            parts = (
                rng.choice(_CONSONANTS) + rng.choice(_VOWELS) for _ in range(rng.randint(1, 3))
            )
            word = "".join(parts) + rng.choice(["", rng.choice(_CONSONANTS)])
        elif choice < 0.68:
            word = "".join(rng.choices(CHARACTERS[:26], k=rng.randint(2, 6)))
        else:
            word = "".join(rng.choices(CHARACTERS[26:], k=rng.randint(1, 6)))
        if is_held_out(word) == mix.held_out:
            return word


def draw_scene(
    rng: random.Random, width_px: int, height_px: int, mix: SceneMix, scale: float = 2.0
) -> Scene:
    """Draw a random scene, `scale` times larger than the size the model will see."""
    background = rng.choice(list(COLOURS)) if rng.random() < 0.75 else "white"
    size = round(width_px * scale), round(height_px * scale)
    picture = Image.new("RGB", size, _shade(rng, background))
    if rng.random() < 0.25:
        _tint(rng, picture, background)
    pen = ImageDraw.Draw(picture)
    kinds = ("shapes", "text", "both", "one_big", "crowd")
    weights = (mix.shapes, mix.text, mix.both, mix.one_big, mix.crowd)
    kind = rng.choices(kinds, weights)[0]
    things: list[Thing] = []
    cells = list(range(9))
    if kind in ("text", "both"):
        row = rng.randrange(3) if kind == "both" else None
        room = (0.02, 0.03, 0.98, 0.97) if row is None else (0.02, row / 3, 0.98, (row + 1) / 3)
        things.append(_draw_text(rng, pen, size, background, draw_word(rng, mix), room))
        if row is not None:
            cells = [cell for cell in cells if cell // 3 != row]
    if kind == "one_big":
        things.append(_draw_big(rng, pen, size, background))
    elif kind == "crowd":
        things = _draw_crowd(rng, pen, size, background, mix)
    elif kind != "text":
        most = mix.max_shapes if kind == "shapes" else 2
        for cell in sorted(rng.sample(cells, rng.randint(1, most))):
            things.append(_draw_small(rng, pen, size, background, cell))
    things.sort(key=lambda thing: POSITIONS.index(thing.position))
    return Scene(picture, background, tuple(things))


def _shade(rng: random.Random, colour: str) -> tuple[int, int, int]:
    red, green, blue = COLOURS[colour]
    light, jitter = rng.uniform(-14, 14), 10
    parts = (c + light + rng.uniform(-jitter, jitter) for c in (red, green, blue))
    if colour in ("gray", "black", "white"):
        level = red + rng.uniform(-14, 14)
        parts = (level + rng.uniform(-3, 3) for _ in range(3))
    shade = [max(0, min(255, round(part))) for part in parts]
    return shade[0], shade[1], shade[2]


def _tint(rng: random.Random, picture: Image.Image, colour: str) -> None:
    """Give the background a soft gradient between two shades of its colour."""
    other = Image.new("RGB", picture.size, _shade(rng, colour))
    gradient = Image.linear_gradient("L").rotate(rng.choice((0, 90, 180, 270)))
    picture.paste(other, mask=gradient.resize(picture.size))


def _contrasting(rng: random.Random, background: str, least: float = 0.0) -> str:
    """Choose a colour that stands out; `least` is the difference in luminance, 0..255."""
    while True:
        colour = rng.choice(list(COLOURS))
        difference = abs(_luminance(colour) - _luminance(background))
        if colour != background and difference >= least:
            if frozenset((colour, background)) not in _TOO_CLOSE:
                return colour


def _luminance(colour: str) -> float:
    red, green, blue = COLOURS[colour]
    return 0.299 * red + 0.587 * green + 0.114 * blue


def _draw_small(
    rng: random.Random, pen: ImageDraw.ImageDraw, size: tuple[int, int], background: str, cell: int
) -> Thing:
    """Draw a shape inside one ninth of the picture, its middle well inside that ninth."""
    cell_w, cell_h = size[0] / 3, size[1] / 3
    extent = min(cell_w, cell_h) * rng.uniform(0.5, 0.9)
    kind = rng.choice(SHAPES)
    width, height = _proportions(rng, kind, extent, max(cell_w, cell_h) * 0.95)
    width, height = min(width, cell_w * 0.95), min(height, cell_h * 0.95)
    if kind == "square":
        width = height = min(width, height)
    free_x, free_y = (cell_w - width) * 0.45, (cell_h - height) * 0.45
    x = (cell % 3 + 0.5) * cell_w + rng.uniform(-free_x, free_x)
    y = (cell // 3 + 0.5) * cell_h + rng.uniform(-free_y, free_y)
    return _draw_shape(rng, pen, size, background, kind, (x, y, width, height))


def _draw_big(
    rng: random.Random, pen: ImageDraw.ImageDraw, size: tuple[int, int], background: str
) -> Thing:
    """Draw one shape of any size anywhere."""
    kind = rng.choice(SHAPES)
    extent = min(size) * rng.uniform(0.16, 0.85)
    width, height = _proportions(rng, kind, extent, extent)
    x = rng.uniform(width / 2, size[0] - width / 2)
    y = rng.uniform(height / 2, size[1] - height / 2)
    # A middle close to a border between two ninths would make its position a matter of taste.
    for axis, (middle, extent) in enumerate(((x, width), (y, height))):
        third = size[axis] / 3
        for border in (third, 2 * third):
            if abs(middle - border) < 0.1 * third:
                middle = border + math.copysign(0.1 * third, middle - border)
        middle = min(max(middle, extent / 2), size[axis] - extent / 2)
        x, y = (middle, y) if axis == 0 else (x, middle)
    return _draw_shape(rng, pen, size, background, kind, (x, y, width, height))


def _proportions(
    rng: random.Random, kind: str, extent: float, longest: float
) -> tuple[float, float]:
    if kind == "rectangle":
        long_side = min(longest, extent * rng.uniform(1.0, 1.2))
        short_side = long_side * rng.uniform(0.4, 0.66)
        return (long_side, short_side) if rng.random() < 0.5 else (short_side, long_side)
    if kind in ("triangle", "star", "cross", "heart"):
        return extent, extent * rng.uniform(0.9, 1.0)
    return extent, extent


def _draw_shape(
    rng: random.Random,
    pen: ImageDraw.ImageDraw,
    size: tuple[int, int],
    background: str,
    kind: str,
    place: tuple[float, float, float, float],
) -> Thing:
    x, y, width, height = place
    colour = _contrasting(rng, background)
    fill = _shade(rng, colour)
    left, top, right, bottom = x - width / 2, y - height / 2, x + width / 2, y + height / 2
    if kind == "circle":
        pen.ellipse((left, top, right, bottom), fill=fill)
    elif kind in ("square", "rectangle"):
        pen.rectangle((left, top, right, bottom), fill=fill)
    else:
        outline = _OUTLINES[kind]()
        pen.polygon([(x + px * width / 2, y + py * height / 2) for px, py in outline], fill=fill)
    box = (left / size[0], top / size[1], right / size[0], bottom / size[1])
    clipped = tuple(max(0.0, min(1.0, edge)) for edge in box)
    return Thing(kind, colour, (clipped[0], clipped[1], clipped[2], clipped[3]))


def _triangle() -> list[tuple[float, float]]:
    return [(0, -1), (1, 1), (-1, 1)]


def _star() -> list[tuple[float, float]]:
    points = []
    for i in range(10):
        radius = 1.0 if i % 2 == 0 else 0.42
        angle = math.pi * i / 5 - math.pi / 2
        points.append(
            (radius * math.cos(angle) / 0.951, (radius * math.sin(angle) + 0.095) / 0.905)
        )
    return points


def _cross() -> list[tuple[float, float]]:
    a = 0.33
    return [(-a, -1), (a, -1), (a, -a), (1, -a), (1, a), (a, a), (a, 1), (-a, 1), (-a, a),
            (-1, a), (-1, -a), (-a, -a)]  # fmt: skip


@functools.cache
def _heart() -> list[tuple[float, float]]:
    points = []
    for i in range(40):
        t = 2 * math.pi * i / 40
        x = 16 * math.sin(t) ** 3
        y = -(13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t))
        points.append((x / 16, (y - 2.5) / 14.5))
    return points


_OUTLINES: dict[str, Callable[[], list[tuple[float, float]]]] = {
    "triangle": _triangle,
    "star": _star,
    "cross": _cross,
    "heart": _heart,
}


@functools.lru_cache(maxsize=256)
def _font(size_px: int) -> ImageFont.FreeTypeFont:
    font = ImageFont.load_default(size_px)
    if not isinstance(font, ImageFont.FreeTypeFont):
        raise RuntimeError("Pillow was built without FreeType; the pictures need its font.")
    return font


def _draw_crowd(
    rng: random.Random,
    pen: ImageDraw.ImageDraw,
    size: tuple[int, int],
    background: str,
    mix: SceneMix,
) -> list[Thing]:
    things = []
    for row in range(3):
        if rng.random() < 0.4:
            room = (0.01, row / 3, 0.99, (row + 1) / 3)
            things.append(_draw_text(rng, pen, size, background, draw_word(rng, mix), room))
            continue
        for column in range(3):
            if rng.random() < 0.3:
                word = "".join(rng.choices(CHARACTERS, k=rng.randint(1, 2)))
                room = (column / 3 + 0.01, row / 3, (column + 1) / 3 - 0.01, (row + 1) / 3)
                things.append(_draw_text(rng, pen, size, background, word, room))
            else:
                things.append(_draw_small(rng, pen, size, background, row * 3 + column))
    return things


def _draw_text(
    rng: random.Random,
    pen: ImageDraw.ImageDraw,
    size: tuple[int, int],
    background: str,
    word: str,
    room: tuple[float, float, float, float],
) -> Thing:
    """Print a word on one line inside the room, x0, y0, x1, y1 in fractions of the picture."""
    colour = _contrasting(rng, background, least=55)
    font_px = round(rng.uniform(0.16, 0.32) * min(max(size), 1.5 * min(size)))
    spacing = rng.uniform(0.0, 0.12)
    stroke = rng.choice((0, 0, 0, 1, 2))
    x0, x1 = room[0] * size[0], room[2] * size[0]
    y0, y1 = room[1] * size[1], room[3] * size[1]
    while True:
        font = _font(font_px)
        lengths = [font.getlength(c) + spacing * font_px for c in word]
        top, bottom = font.getbbox("H0")[1], font.getbbox("H0")[3]
        if (sum(lengths) <= x1 - x0 and bottom - top <= y1 - y0) or font_px <= 16:
            break
        font_px = max(16, int(font_px * 0.93))
    width, height = sum(lengths), bottom - top
    left = rng.uniform(x0, max(x0, x1 - width))
    upper = rng.uniform(y0, max(y0, y1 - height))
    x, centres = left, []
    fill = _shade(rng, colour)
    for character, length in zip(word, lengths, strict=True):
        pen.text((x, upper - top), character, fill, font, stroke_width=stroke, stroke_fill=fill)
        centres.append((x + (length - spacing * font_px) / 2) / size[0])
        x += length
    right = x - spacing * font_px
    box = (left / size[0], upper / size[1], min(1.0, right / size[0]), (upper + height) / size[1])
    return Thing("text", colour, box, word, tuple(centres))
