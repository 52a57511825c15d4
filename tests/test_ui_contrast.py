"""Colours of theme and style sheets: text can be read, parts told apart by every eye."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

import vlm.ui.look
from vlm.ui.look import theme

FOLDER = Path(vlm.ui.look.__file__).parent
STYLE = "".join((FOLDER / name).read_text(encoding="utf-8") for name in ("style.css", "boxes.css"))
NAMED = {"white": "#ffffff", "black": "#000000"}
SURFACES = ("body-background-fill", "block-background-fill", "background-fill-secondary")
# How eyes without one kind of cone see (Machado et al. 2009), on linear RGB.
EYES = {
    "all cones": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "no red cones": (
        (0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "no green cones": (
        (0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "no blue cones": (
        (1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}  # fmt: skip


def variables(is_dark: bool) -> dict[str, str]:
    """All custom properties of a theme, those of the style sheet last."""
    found: dict[str, str] = {}
    for css in (theme()._get_theme_css(), STYLE):
        for selector, block in re.findall(r"([^{}]*)\{([^{}]*)\}", css):
            if is_dark if ".dark" in selector else selector.strip().endswith(":root"):
                found |= dict(re.findall(r"--([\w-]+):\s*([^;]+);", block))
    return found


def colour(value: str, names: dict[str, str]) -> str:
    """Follow a value to its hex form."""
    while match := re.fullmatch(r"var\(--([\w-]+)\)", value.strip()):
        value = names[match[1]]
    value = NAMED.get(value.strip(), value.strip())
    if re.fullmatch(r"#\w{3}", value):
        value = "#" + "".join(2 * digit for digit in value[1:])
    assert re.fullmatch(r"#[0-9a-fA-F]{6}", value), value
    return value


def linear(value: str) -> tuple[float, ...]:
    shares = [int(value[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return tuple(s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares)


def contrast(one: str, other: str) -> float:
    """The ratio of WCAG 2."""
    light, dark = sorted(
        (sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear(v), strict=True)) + 0.05)
        for v in (one, other)
    )[::-1]
    return light / dark


def lab(rgb: tuple[float, ...]) -> tuple[float, float, float]:
    rows = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
    xyz = [sum(w * min(1, max(0, c)) for w, c in zip(row, rgb, strict=True)) for row in rows]
    x, y, z = (
        t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116
        for t in (xyz[0] / 0.9505, xyz[1], xyz[2] / 1.089)
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("is_dark", [False, True])
def test_text_has_a_contrast_of_four_and_a_half(is_dark: bool) -> None:
    names = variables(is_dark)
    pairs = [
        (text, surface)
        for text in ("body-text-color", "body-text-color-subdued", "block-title-text-color")
        for surface in SURFACES
    ]
    pairs += [
        ("block-info-text-color", "block-background-fill"),
        ("input-placeholder-color", "input-background-fill"),
        ("button-secondary-text-color", "button-secondary-background-fill"),
    ]
    ratios = {pair: contrast(*(colour(names[name], names) for name in pair)) for pair in pairs}
    assert not {pair: round(ratio, 2) for pair, ratio in ratios.items() if ratio < 4.5}


@pytest.mark.parametrize("is_dark", [False, True])
def test_rules_that_set_text_and_ground_keep_it_too(is_dark: bool) -> None:
    names, checked = variables(is_dark), []
    for selector, body in re.findall(r"([^{}]+)\{([^{}]*)\}", STYLE):
        found = dict(re.findall(r"(?:^|[;\s])(color|background): ([^;]+);", body))
        if (
            len(found) < 2
            or re.search("transparent|none", found["background"])
            or (".dark" in selector) != is_dark
        ):
            continue
        if "--box" in body:  # its ink is chosen by its brightness: see test_box_drawing.py
            continue
        ratio = contrast(*(colour(found[key], names) for key in ("color", "background")))
        is_icon = "submit-button" in selector
        checked.append(selector.strip())
        assert ratio >= (3 if is_icon else 4.5), (selector, ratio)
    assert len(checked) >= 3


@pytest.mark.parametrize("is_dark", [False, True])
def test_parts_of_memory_stand_apart_for_every_eye(is_dark: bool) -> None:
    names = variables(is_dark)
    parts = {name: colour(names[name], names) for name in ("weights", "kv", "pictures", "rest")}
    ground = colour(names["block-background-fill"], names)
    for name in (*parts, "focus"):
        assert contrast(colour(names[name], names), ground) >= 3, name
    for eye, rows in EYES.items():
        seen = {
            name: lab(
                tuple(sum(w * c for w, c in zip(row, linear(value), strict=True)) for row in rows)
            )
            for name, value in parts.items()
        }
        for one, other in itertools.combinations(seen, 2):
            apart = sum((a - b) ** 2 for a, b in zip(seen[one], seen[other], strict=True)) ** 0.5
            assert apart >= 20, (eye, one, other, round(apart))
