"""Draws pictures: shapes in colours, several of them, numbers and words. What was drawn is known, so can be asked."""

import math
import string
from dataclasses import dataclass

from PIL import Image, ImageDraw, ImageFont

from tools.bundled_model.dialogues.words import Source

COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (214, 40, 40),
    "green": (44, 160, 60),
    "blue": (40, 80, 210),
    "yellow": (245, 210, 40),
    "orange": (245, 135, 30),
    "purple": (130, 50, 170),
    "pink": (245, 150, 190),
    "brown": (125, 80, 45),
    "black": (15, 15, 15),
    "grey": (130, 130, 130),
}
_PAPERS = ((255, 255, 255), (255, 255, 255), (245, 243, 235), (225, 235, 245), (30, 32, 40))
SHAPES = ("circle", "square", "triangle", "star", "cross", "diamond")
_LEAST_CONTRAST = 150  # sum of the differences of the three colours: less could not be told apart by anyone
_MARGIN = 0.06  # of the shorter side, around everything


@dataclass(frozen=True, slots=True)
class Thing:
    """A shape in a picture. Places are shares of the width and the height."""

    shape: str
    colour: str
    x: float
    y: float

    @property
    def words(self) -> str:
        return f"{self.colour} {self.shape}"


@dataclass(frozen=True, slots=True)
class Scene:
    kind: str  # "one", "several", "two", "number" or "word"
    image: Image.Image
    things: tuple[Thing, ...] = ()
    text: str = ""  # what is written in it


def draw_scene(source: Source) -> Scene:
    return source.pick((_one, _one, _several, _several, _two, _number, _word))(source)


class Canvas:
    """A picture in the making, with a hand that trembles a little."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.width, self.height = source.between(120, 280), source.between(120, 280)
        self.paper = source.pick(_PAPERS)
        self.image = Image.new("RGB", (self.width, self.height), self.paper)
        self.draw = ImageDraw.Draw(self.image)

    @property
    def side(self) -> int:
        return min(self.width, self.height)

    def colour(self) -> str:
        """One that stands out from the paper."""
        return self.source.pick([name for name in COLOURS if _difference(COLOURS[name], self.paper) > _LEAST_CONTRAST])

    def put(self, shape: str, colour: str, x: float, y: float, size: float) -> Thing:
        """`x` and `y` are the middle, in pixels, `size` is half of what the shape takes."""
        self._outline(shape, x, y, size, COLOURS[colour])
        return Thing(shape, colour, x / self.width, y / self.height)

    def _outline(self, shape: str, x: float, y: float, size: float, fill: tuple[int, int, int]) -> None:
        if shape == "circle":
            self.draw.ellipse((x - size, y - size, x + size, y + size), fill=fill)
            return
        points = [(x + size * dx, y + size * dy) for dx, dy in _POINTS[shape]]
        self.draw.polygon(points, fill=fill)

    def write(self, text: str, colour: str) -> None:
        """As large as fits, less a little, somewhere."""
        room = (self.width * (1 - 2 * _MARGIN), self.height * (1 - 2 * _MARGIN))
        share = 0.7 + 0.3 * self.source.rng.random()
        left, top, right, bottom = ImageFont.load_default(100).getbbox(text)
        size = 100 * share * min(room[0] / (right - left), room[1] / (bottom - top))
        font = ImageFont.load_default(size)
        left, top, right, bottom = font.getbbox(text)
        x = self.width * _MARGIN + self.source.rng.random() * (room[0] - (right - left))
        y = self.height * _MARGIN + self.source.rng.random() * (room[1] - (bottom - top))
        self.draw.text((x - left, y - top), text, font=font, fill=COLOURS[colour])


def _star() -> list[tuple[float, float]]:
    radii = [1.0, 0.42] * 5
    return [
        (radius * math.sin(index * math.pi / 5), -radius * math.cos(index * math.pi / 5))
        for index, radius in enumerate(radii)
    ]


_ARM = 0.36  # of a cross, half its width
_POINTS: dict[str, list[tuple[float, float]]] = {
    "square": [(-0.86, -0.86), (0.86, -0.86), (0.86, 0.86), (-0.86, 0.86)],
    "triangle": [(0, -0.95), (0.95, 0.8), (-0.95, 0.8)],
    "diamond": [(0, -1), (0.72, 0), (0, 1), (-0.72, 0)],
    "cross": [(-_ARM, -1), (_ARM, -1), (_ARM, -_ARM), (1, -_ARM), (1, _ARM), (_ARM, _ARM),
              (_ARM, 1), (-_ARM, 1), (-_ARM, _ARM), (-1, _ARM), (-1, -_ARM), (-_ARM, -_ARM)],
    "star": _star(),
}  # fmt: skip


def _difference(one: tuple[int, int, int], other: tuple[int, int, int]) -> int:
    return sum(abs(a - b) for a, b in zip(one, other, strict=True))


def _one(source: Source) -> Scene:
    canvas = Canvas(source)
    size = canvas.side * (0.18 + 0.24 * source.rng.random())
    x, y = (size + source.rng.random() * (extent - 2 * size) for extent in (canvas.width, canvas.height))
    return Scene("one", canvas.image, (canvas.put(source.pick(SHAPES), canvas.colour(), x, y, size),))


def _several(source: Source) -> Scene:
    """Up to nine in a grid, none of which touches another; a shape, or a shape and a colour, may differ."""
    canvas = Canvas(source)
    cells = [(column, row) for row in range(3) for column in range(3)]
    chosen = source.sample(cells, source.between(1, 7))
    shapes, colours = source.sample(SHAPES, 2), [canvas.colour(), canvas.colour()]
    things = []
    for column, row in chosen:
        other = source.chance(0.3)
        x, y = canvas.width * (column + 0.5) / 3, canvas.height * (row + 0.5) / 3
        size = canvas.side / 6 * (0.6 + 0.3 * source.rng.random())
        things.append(canvas.put(shapes[other], colours[other], x, y, size))
    return Scene("several", canvas.image, tuple(things))


def _two(source: Source) -> Scene:
    """Beside each other or one above the other."""
    canvas = Canvas(source)
    is_across = source.chance(0.5)
    shapes = [source.pick(SHAPES), source.pick(SHAPES)]
    things = []
    for index, shape in enumerate(shapes):
        along, beside = 0.27 + 0.46 * index, 0.35 + 0.3 * source.rng.random()
        x, y = (along, beside) if is_across else (beside, along)
        size = canvas.side * (0.13 + 0.07 * source.rng.random())
        things.append(canvas.put(shape, canvas.colour(), x * canvas.width, y * canvas.height, size))
    return Scene("two", canvas.image, tuple(things))


def _number(source: Source) -> Scene:
    canvas = Canvas(source)
    text = str(source.between(0, source.pick((9, 99, 999))))
    canvas.write(text, canvas.colour())
    return Scene("number", canvas.image, text=text)


def _word(source: Source) -> Scene:
    canvas = Canvas(source)
    words = [word for word in source.lexicon.nouns if 2 <= len(word) <= 5 and word.isascii()]
    word = source.pick(words)
    if source.is_inventive and source.chance(0.5):  # so that letters are learned, and not a list of words
        word = "".join(source.pick(string.ascii_lowercase) for _ in range(source.between(2, 4)))
    text = source.pick((word.upper(), word.lower()))
    canvas.write(text, canvas.colour())
    return Scene("word", canvas.image, text=text)
