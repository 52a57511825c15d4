"""Every kind of picture file becomes upright RGB, or is refused with a sentence."""

import io
import struct
import subprocess
import sys
import threading
import time
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pillow_heif
import pytest
from PIL import Image, ImageDraw, ImageFile

from vlm import images
from vlm.errors import PictureError
from vlm.images import PictureLimits, open_picture, peek_size, safe_name
from vlm.patches import patch_picture
from vlm.picture_size import PictureGeometry

REPOSITORY = Path(__file__).resolve().parent.parent

RED, BLACK, WHITE, BLUE = (255, 0, 0), (0, 0, 0), (255, 255, 255), (0, 0, 255)


def saved(image, kind, **options):
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def scene(size=(64, 48)):
    """Red with a blue lower right quarter."""
    image = Image.new("RGB", size, RED)
    ImageDraw.Draw(image).rectangle([size[0] // 2, size[1] // 2, *size], fill=BLUE)
    return image


def heic(image, **options):
    stream = io.BytesIO()
    pillow_heif.from_pillow(image).save(stream, **options)
    return stream.getvalue()


def at(picture, x, y):
    """The pixel at fractions x, y of the picture."""
    width, height = picture.image.size
    return picture.image.getpixel((int(x * (width - 1)), int(y * (height - 1))))


def is_near(pixel, expected, within=40):
    return all(abs(p - e) <= within for p, e in zip(pixel, expected, strict=True))


def refusal(source, **options):
    with pytest.raises(PictureError) as caught:
        open_picture(source, **options)
    return str(caught.value)


FILES = {
    "JPEG": lambda: saved(scene(), "JPEG"),
    "PNG": lambda: saved(scene(), "PNG"),
    "WEBP": lambda: saved(scene(), "WEBP"),
    "GIF": lambda: saved(scene(), "GIF"),
    "BMP": lambda: saved(scene(), "BMP"),
    "TIFF": lambda: saved(scene(), "TIFF", compression="tiff_lzw"),
    "AVIF": lambda: saved(scene(), "AVIF"),
    "HEIC": lambda: heic(scene()),
    "MPO": lambda: saved(scene(), "MPO", save_all=True, append_images=[scene((8, 8))]),
}


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("name", ["x.png", "x.jpg", "x", "x.txt"])
def test_every_kind_is_known_by_its_content_not_its_name(kind, name, tmp_path):
    content = FILES[kind]()
    (tmp_path / name).write_bytes(content)
    for source in (content, tmp_path / name, str(tmp_path / name)):
        picture = open_picture(source)
        assert picture.image.mode == "RGB" and picture.image.size == (64, 48)
        assert is_near(at(picture, 0.2, 0.2), RED) and is_near(at(picture, 0.9, 0.9), BLUE)
        assert picture.notices == ()


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_pictures_are_upright_as_displayed(kind, orientation):
    upright = Image.new("RGB", (48, 96), BLACK)
    draw = ImageDraw.Draw(upright)
    draw.rectangle([0, 0, 48, 24], fill=RED)
    draw.rectangle([0, 72, 12, 96], fill=BLUE)
    undo = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    stored = upright.transpose(undo[orientation]) if orientation in undo else upright
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = saved(stored, kind, exif=exif.tobytes())
    picture = open_picture(file)
    assert picture.image.size == (picture.width_px, picture.height_px) == (48, 96)
    assert peek_size(file) == (48, 96), "told before it is decoded"
    assert is_near(at(picture, 0.5, 0.1), RED) and is_near(at(picture, 0.1, 0.9), BLUE)
    assert is_near(at(picture, 0.9, 0.9), BLACK)
    # Else whoever saves or shows the upright pixels would turn them again.
    assert picture.image.getexif().get(0x0112) is None


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "GIF", "BMP", "AVIF"])
def test_a_size_is_told_without_decoding(kind, monkeypatch):
    file = saved(Image.new("RGB", (48, 96), RED), kind)
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda image: pytest.fail("decoded"))
    assert peek_size(file) == (48, 96)


def test_the_hash_is_of_what_the_model_sees():
    turned = Image.Exif()
    turned[0x0112] = 6
    plain = saved(scene(), "PNG")
    assert open_picture(plain, "a").content_hash == open_picture(plain, "b").content_hash
    assert open_picture(plain).content_hash == open_picture(saved(scene(), "BMP")).content_hash
    assert (
        open_picture(plain).content_hash
        != open_picture(saved(scene(), "PNG", exif=turned.tobytes())).content_hash
    )
    wide, tall = Image.new("RGB", (6, 4), RED), Image.new("RGB", (4, 6), RED)
    assert open_picture(wide).content_hash != open_picture(tall).content_hash


def glyph(mode, ink, clear):
    """A bar of ink on a fully transparent ground."""
    image = Image.new(mode, (40, 20), clear)
    ImageDraw.Draw(image).rectangle([10, 5, 30, 15], fill=ink)
    return image


def test_transparency_shows_white():
    palette = Image.new("P", (40, 20), 0)
    palette.putpalette([0, 0, 0, 0, 0, 0] + [0] * 762)
    ImageDraw.Draw(palette).rectangle([10, 5, 30, 15], fill=1)
    files = {
        "RGBA": saved(glyph("RGBA", (0, 0, 0, 255), (0, 0, 0, 0)), "PNG"),
        "LA": saved(glyph("LA", (0, 255), (0, 0)), "PNG"),
        "P": saved(palette, "PNG", transparency=0),
        "P with bytes": saved(palette, "PNG", transparency=b"\x00\xff"),
        "GIF": saved(palette, "GIF", transparency=0),
        "RGB with a colour": saved(glyph("RGB", BLACK, (1, 2, 3)), "PNG", transparency=(1, 2, 3)),
        "L with a level": saved(glyph("L", 0, 7), "PNG", transparency=7),
        "WEBP": saved(glyph("RGBA", (0, 0, 0, 255), (0, 0, 0, 0)), "WEBP", lossless=True),
        "16 bits with a level": saved(glyph("I;16", 65535, 9), "PNG", transparency=9),
    }
    for kind, content in files.items():
        picture = open_picture(content)
        assert at(picture, 0.0, 0.0) == WHITE, kind
        assert at(picture, 0.5, 0.5) == (WHITE if "16" in kind else BLACK), kind
    for mode in ("PA", "La", "RGBa"):
        source = files["LA"] if mode != "RGBa" else files["RGBA"]
        image = Image.open(io.BytesIO(source))
        image = palette.convert("PA") if mode == "PA" else image.convert(mode)
        if mode == "PA":
            image.putalpha(Image.fromarray(np.asarray(palette) * 255))
        picture = open_picture(image)
        assert at(picture, 0.0, 0.0) == WHITE and at(picture, 0.5, 0.5) == BLACK, mode


def test_half_transparent_is_half_white():
    picture = open_picture(saved(Image.new("RGBA", (9, 9), (0, 0, 0, 128)), "PNG"))
    assert is_near(at(picture, 0.5, 0.5), (127, 127, 127), within=1)


RAMP = np.linspace(0, 65535, 256).round().astype(np.uint16).reshape(16, 16)


def grey(picture):
    red, green, blue = (np.asarray(band) for band in picture.image.split())
    assert (red == green).all() and (red == blue).all()
    return red


def test_16_bit_ramps_are_scaled_not_clipped():
    wanted = np.arange(256).reshape(16, 16)
    little = Image.fromarray(RAMP)
    big = Image.frombytes("I;16B", (16, 16), RAMP.astype(">u2").tobytes())
    sources = [
        saved(little, "PNG"),
        saved(little, "TIFF"),
        little,
        big,
        saved(big, "TIFF"),
        Image.fromarray(RAMP.astype(np.int32)),
        Image.fromarray((RAMP / 65535).astype(np.float32)),
        saved(Image.fromarray((RAMP / 65535).astype(np.float32)), "TIFF"),
        Image.fromarray((RAMP / 257).astype(np.float32)),
    ]
    for source in sources:
        picture = open_picture(source)
        assert np.abs(grey(picture).astype(int) - wanted).max() <= 1
        assert picture.notices == ()


@pytest.mark.parametrize(
    "values",
    [
        np.arange(0, 4096, 16, dtype=np.uint16),  # 12-bit data in a 16-bit file
        np.linspace(-3, 9, 256, dtype=np.float32),
        np.linspace(0, 1e6, 256, dtype=np.float32),
        np.arange(-128, 128, dtype=np.int32) * 1000,
        np.linspace(-0.2, 0.3, 256, dtype=np.float32),
    ],
)
def test_other_ranges_are_stretched_with_a_notice(values):
    picture = open_picture(Image.fromarray(values.reshape(16, 16)))
    assert np.abs(grey(picture).ravel().astype(int) - np.arange(256)).max() <= 1
    assert "stretched" in picture.notices[0]


def test_floats_that_are_no_numbers_do_no_harm():
    values = np.array([[np.nan, 0.0, 0.5, np.inf, -np.inf, 1.0]], np.float32)
    assert grey(open_picture(Image.fromarray(values))).tolist() == [[0, 0, 128, 255, 0, 255]]
    for constant in (np.nan, -5.0, 1e9):
        assert grey(open_picture(Image.fromarray(np.full((4, 4), constant, np.float32)))).max() == 0


def test_16_bit_colours_keep_their_colour():
    rows = b"".join(b"\0" + struct.pack(">3H", 65535, 0, 32768) * 4 for _ in range(4))
    picture = open_picture(png(4, 4, depth=16, color=2, rows=rows))
    assert is_near(at(picture, 0.5, 0.5), (255, 0, 128), within=1)


def test_cmyk_red_is_red_with_and_without_the_adobe_marker():
    content = saved(Image.new("CMYK", (32, 32), (0, 255, 255, 0)), "JPEG", quality=95)
    marker = content.index(b"\xff\xee")
    length = int.from_bytes(content[marker + 2 : marker + 4], "big")
    assert content[marker + 4 : marker + 9] == b"Adobe"
    bare = content[:marker] + content[marker + 2 + length :]
    for source in (content, bare, saved(Image.new("CMYK", (32, 32), (0, 255, 255, 0)), "TIFF")):
        assert is_near(at(open_picture(source), 0.5, 0.5), RED, within=5)


def cmyk_profile(corner_lab):
    """A CMYK profile of two grid points a channel: every corner has the Lab of `corner_lab`."""
    identity = bytes(range(256))
    corners = bytes(v for i in range(16) for v in corner_lab(*(i >> b & 1 for b in (3, 2, 1, 0))))
    matrix = b"".join(struct.pack(">i", 65536 * (i % 4 == 0)) for i in range(9))
    table = b"mft1\0\0\0\0" + bytes([4, 3, 2, 0]) + matrix + identity * 4 + corners + identity * 3
    table += b"\0" * (-len(table) % 4)
    white = b"XYZ \0\0\0\0" + struct.pack(">3i", 63190, 65536, 54061)
    start = 128 + 4 + 12 * 2
    tags = struct.pack(">I", 2) + b"A2B0" + struct.pack(">2I", start, len(table))
    tags += b"wtpt" + struct.pack(">2I", start + len(table), len(white))
    header = bytearray(128)
    header[0:4] = struct.pack(">I", start + len(table) + len(white))
    header[8:12], header[12:24], header[36:40] = b"\x02\x40\0\0", b"prtrCMYKLab ", b"acsp"
    header[68:80] = struct.pack(">3i", 63190, 65536, 54061)
    return bytes(header) + tags + table + white


def test_cmyk_follows_its_colour_profile():
    # A press whose cyan ink is grey: only the profile can know. Lab 8 bit: L * 2.55, a + 128.
    profile = cmyk_profile(lambda c, m, y, k: (0 if k else 128 if c else 255, 128, 128))
    cyan = Image.new("CMYK", (32, 32), (255, 0, 0, 0))
    managed = open_picture(saved(cyan, "JPEG", icc_profile=profile, quality=95))
    assert is_near(at(managed, 0.5, 0.5), (119, 119, 119), within=12)
    assert "icc_profile" not in managed.image.info
    for unusable in (None, b"no profile", profile[:200]):
        plain = open_picture(saved(cyan, "JPEG", icc_profile=unusable, quality=95))
        assert is_near(at(plain, 0.5, 0.5), (0, 255, 255), within=12)


def test_lab_becomes_rgb():
    image = Image.new("LAB", (64, 48), (255, 128, 128))
    assert is_near(at(open_picture(image), 0.5, 0.5), WHITE)


@pytest.mark.parametrize("mode", ["1", "L", "P", "YCbCr", "HSV", "RGBX", "CMYK"])
def test_other_modes_become_rgb(mode):
    picture = open_picture(scene().convert(mode))
    assert picture.image.mode == "RGB" and picture.image.size == (64, 48)
    if mode not in ("1", "L"):
        assert is_near(at(picture, 0.2, 0.2), RED) and is_near(at(picture, 0.9, 0.9), BLUE)


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "AVIF"])
def test_animations_give_their_first_frame_and_say_so(kind):
    frames = [Image.new("RGB", (32, 32), colour) for colour in (BLACK, RED, BLUE)]
    content = saved(frames[0], kind, save_all=True, append_images=frames[1:], duration=100)
    picture = open_picture(content)
    assert is_near(at(picture, 0.5, 0.5), BLACK, within=10)
    assert picture.notices == ("This picture is an animation; only its first frame is used.",)


def test_files_of_several_pages_give_the_first_and_say_so():
    pages = [Image.new("RGB", (32, 32), colour) for colour in (BLACK, RED)]
    picture = open_picture(saved(pages[0], "TIFF", save_all=True, append_images=pages[1:]))
    assert at(picture, 0.5, 0.5) == BLACK
    assert picture.notices == ("This TIFF file holds several pictures; only the first is used.",)


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("part", [0.02, 0.5, 0.9])
def test_cut_off_files_are_refused(kind, part):
    noise = Image.effect_noise((320, 240), 80).convert("RGB")
    content = {
        "HEIC": lambda: heic(noise),
        "MPO": lambda: saved(noise, "MPO"),
    }.get(kind, lambda: saved(noise, kind))()
    message = refusal(content[: int(len(content) * part)])
    assert "damaged or cut off" in message or "cannot be read" in message or "not a" in message


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "empty (0 bytes)"),
        (b"hello, this is text", "contains text, not a picture. Use a JPEG, PNG"),
        ("图片".encode() * 2000, "contains text"),
        (b"BMW is a car maker, not a bitmap", "contains text"),
        (b"%PDF-1.7\n%\xe2\xe3", "PDF document"),
        (b'<?xml version="1.0"?>\n<svg xmlns="x"></svg>', "SVG drawing"),
        (b"\xef\xbb\xbf <svg/>", "SVG drawing"),
        (b"<!doctype html><html></html>", "contains text"),
        (b"\0\0\0\x20ftypisom\0\0\2\0isomiso2avc1mp41" + b"\0" * 99, "video"),
        (b"8BPS\0\1" + b"\0" * 50, "not a picture of a kind that can be read here"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n", "Use a JPEG, PNG"),
        (b"PK\3\4" + b"\0" * 60, "Use a JPEG, PNG"),
        (b"\x7fELF" + bytes(range(256)), "Use a JPEG, PNG"),
        (b"\xff\xd8\xff", "JPEG file is damaged"),
        (b"\x89PNG\r\n\x1a\n", "PNG file is damaged"),
        (b"GIF89a", "GIF file is damaged"),
        (b"II*\0\xff\xff\xff\x7f", "TIFF file is damaged"),
        (b"RIFF\0\0\0\0WEBP", "WebP file is damaged"),
        (b"BM" + b"\0" * 12 + b"\x28\0\0\0" + b"\xff" * 40, "BMP file is damaged"),
        (b"\0\0\0\x14ftypavif\0\0\0\0avif", "AVIF file is damaged"),
        (b"\0\0\0\x14ftypheic\0\0\0\0heic", "HEIC file is damaged"),
    ],
)
def test_what_is_no_picture_is_refused_with_a_sentence(content, sentence):
    message = refusal(content)
    assert sentence in message and message.endswith(".") and "\n" not in message


def png(width, height, depth=1, color=0, rows=None):
    """A PNG written by hand, whose header may promise more than its data holds."""

    def chunk(kind, body):
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    if rows is None:
        rows = bytes((width + 7) // 8 + 1) * min(height, 4)
    header = struct.pack(">2I5B", width, height, depth, color, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def gif(width, height):
    """A GIF whose only frame is larger than its screen."""
    frame = b"\x2c" + struct.pack("<4HB", 0, 0, width, height, 0) + b"\2\2\x44\1\0\x3b"
    return b"GIF89a" + struct.pack("<2H3B", 1, 1, 0x80, 0, 0) + bytes(6) + frame


def test_bombs_are_refused_by_their_header():
    started = time.perf_counter()
    assert refusal(png(90_000, 90_000)) == (
        "This image is 90 000 x 90 000 px; the limit is 178 megapixels. Resize it and try again."
    )
    assert "20 000 x 20 000 px" in refusal(png(20_000, 20_000))
    assert "limit is 178 megapixels" in refusal(
        b"BM"
        + struct.pack("<IHHI", 99, 0, 0, 54)
        + struct.pack("<IiiHHIIiiII", 40, 30_000, 30_000, 1, 24, 0, 0, 0, 0, 0, 0)
    )
    assert refusal(gif(40_000, 40_000))
    assert refusal(Image.new("1", (100, 100)), limits=PictureLimits(max_px=9_999)).startswith(
        "This image is 100 x 100 px; the limit is 0.009999 megapixels."
    )
    assert time.perf_counter() - started < 5


def test_the_limit_can_be_raised_beyond_pillows_own():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        limits = PictureLimits(max_px=10**10)
        # Past the header it is the missing data that is named, not Pillow's limit.
        assert "damaged or cut off" in refusal(png(90_000, 30_000)[:50], limits=limits)


def test_a_large_picture_within_the_limit_is_read_in_bounded_memory(tmp_path):
    """In its own process, so that the peak is this picture's alone."""
    file = tmp_path / "bomb.png"
    file.write_bytes(png(13_000, 13_000, rows=bytes(13_000 // 8 + 1) * 13_000))
    assert file.stat().st_size < 40_000
    code = (
        "import resource, sys\n"
        "from vlm.images import open_picture\n"
        "def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024\n"
        "before = peak()\n"
        "picture = open_picture(sys.argv[1])\n"
        "print(*picture.image.size, picture.width_px, picture.height_px, peak() - before)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(file)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    *sizes, peak_mib = map(int, run.stdout.split())
    assert sizes == [1625, 1625, 13_000, 13_000] and run.stderr == ""
    # Pillow itself takes a byte for each pixel: 161 MiB; RGB at full size would be 676.
    assert peak_mib < 300


@pytest.mark.parametrize(
    ("size", "is_allowed"),
    [((5000, 24), False), ((5000, 25), True), ((1, 201), False), ((1, 200), True)],
)
def test_extreme_ratios_are_refused(size, is_allowed):
    content = saved(Image.new("L", size), "PNG")
    if is_allowed:
        assert open_picture(content).image.size == size
    else:
        assert "its long side may be at most 200 times its short side" in refusal(content)


@pytest.mark.parametrize("size", [(300, 3), (3, 300), (200, 1), (1, 1), (3, 3), (1, 3)])
def test_thin_pictures_are_not_mistaken_for_channels(size):
    picture = open_picture(saved(Image.new("RGB", size, RED), "PNG"))
    assert picture.image.size == size and at(picture, 0.5, 0.5) == RED


def test_large_pictures_are_kept_smaller_but_know_their_size():
    limits = PictureLimits(kept_px=3000)
    exif = Image.Exif()
    exif[0x0112] = 6
    big = scene((641, 481))
    for content in (saved(big, "PNG"), saved(big, "JPEG", quality=95), saved(big, "TIFF")):
        picture = open_picture(content, limits=limits)
        assert (picture.width_px, picture.height_px) == (641, 481)
        assert picture.image.size == (81, 61)
        assert is_near(at(picture, 0.2, 0.2), RED) and is_near(at(picture, 0.9, 0.9), BLUE)
    turned = open_picture(saved(big, "JPEG", exif=exif.tobytes()), limits=limits)
    assert (turned.width_px, turned.height_px) == (481, 641) and turned.image.size == (61, 81)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "1", "CMYK", "I;16", "F"])
def test_halving_matches_an_average_of_the_converted_pixels(mode):
    """Large pictures are converted in bands: no seam, no shift, no lost row."""
    image = Image.effect_noise((301, 2600), 60).convert("L")
    if mode in ("RGBA", "LA"):
        image = image.convert(mode)
        image.putalpha(Image.linear_gradient("L").resize(image.size))
    elif mode == "I;16":
        image = Image.fromarray(np.asarray(image).astype(np.uint16) * 257)
    else:
        image = image.convert(mode)
    full = open_picture(image).image
    half = open_picture(image, limits=PictureLimits(kept_px=150 * 1300)).image
    wanted = np.asarray(full.reduce(2)).astype(int)
    assert half.size == (151, 1300)
    assert np.abs(np.asarray(half).astype(int) - wanted).max() <= 1


def test_a_pillow_image_that_is_not_loaded_yet_stays_what_it_was():
    image = Image.open(io.BytesIO(saved(scene(), "JPEG")))
    assert open_picture(image, limits=PictureLimits(kept_px=700)).image.size == (32, 24)
    assert image.size == (64, 48) and is_near(image.getpixel((5, 5)), RED)


def test_a_pillow_image_is_copied():
    image = Image.new("RGB", (8, 8), RED)
    picture = open_picture(image)
    image.paste(BLUE, (0, 0, 8, 8))
    assert at(picture, 0.5, 0.5) == RED


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("photo.jpg", "photo.jpg"),
        ("../../etc/passwd", "passwd"),
        ("C:\\Users\\me\\p.png", "p.png"),
        ("/tmp/gradio/abc/图片.png", "图片.png"),
        ("..", "picture"),
        ("", "picture"),
        ("a\x00b\n\u202ec.png", "abc.png"),
        ("dir/", "dir"),
        ("图" * 300 + ".png", "图" * 119 + "…"),
    ],
)
def test_names_never_contain_directories(given, shown):
    assert safe_name(given) == shown
    assert open_picture(Image.new("L", (2, 2)), name=given).name == shown


def test_files_that_cannot_be_opened_are_named(tmp_path):
    pipe = tmp_path / "pipe"
    try:
        import os

        os.mkfifo(pipe)
    except (AttributeError, OSError):
        pipe = tmp_path / "missing"
    for source in (tmp_path / "missing.png", tmp_path, pipe, "a\0b", "x" * 5000, "/dev/zero"):
        assert "Add it again." in refusal(source)
    (tmp_path / "empty.png").touch()
    assert "empty (0 bytes)" in refusal(tmp_path / "empty.png")
    content = saved(scene(), "BMP")
    message = refusal(content, limits=PictureLimits(max_file_bytes=len(content) - 1))
    assert "limit is" in message and "MiB" in message


def test_odd_metadata_neither_warns_nor_refuses(recwarn):
    exif = b"Exif\0\0II*\0\x08\0\0\0\xff\xff" + b"\x12\x01\x03\0\xff\xff\xff\xff" * 3
    contents = [
        saved(scene(), "JPEG", exif=exif),
        saved(scene(), "PNG", exif=exif),
        saved(scene().quantize(), "PNG", transparency=b"\xff" * 40 + b"\x10"),
    ]
    for content in contents:
        assert open_picture(content).image.size == (64, 48)
    assert not recwarn.list


def test_threads_do_not_disturb_each_other():
    contents = [make() for make in FILES.values()]
    alone = [open_picture(content).content_hash for content in contents]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda i: open_picture(contents[i % len(contents)]), range(90)))
    assert [p.content_hash for p in together] == [alone[i % len(alone)] for i in range(90)]


def test_a_12_megapixel_photo_is_decoded_small():
    """What makes it fast: most of the decoder's work is left out."""
    detail = Image.effect_noise((1000, 750), 40).resize((4000, 3000)).convert("RGB")
    content = saved(detail, "JPEG", quality=85)

    def cpu_time(limits):
        started = time.thread_time()
        picture = open_picture(content, limits=limits)
        patched = patch_picture(picture, PictureGeometry(), 512)
        assert 400 < patched.visual_tokens <= 512
        return time.thread_time() - started

    cpu_time(PictureLimits())
    fast = min(cpu_time(PictureLimits()) for _ in range(3))
    whole = min(cpu_time(PictureLimits(kept_px=12_000_000)) for _ in range(3))
    # CPU time, with room for a busy machine: the aim is 0.15 s.
    assert fast < 0.25 and fast < 0.6 * whole


def test_only_two_pictures_are_decoded_at_once_whoever_asks(monkeypatch):
    content, shrink = saved(scene(), "PNG"), images.shrink_to_rgb
    at_once, most, lock = 0, 0, threading.Lock()

    def watched(*given):
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        time.sleep(0.02)
        try:
            return shrink(*given)
        finally:
            with lock:
                at_once -= 1

    monkeypatch.setattr(images, "shrink_to_rgb", watched)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(open_picture, [content] * 8))
    assert most == 2 and at_once == 0
