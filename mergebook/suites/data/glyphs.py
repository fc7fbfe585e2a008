"""Image tasks rendered from the DejaVu fonts that come with matplotlib: no download.

Each task is one script in a medium of its own. The same seed gives the same images. Where at
least three faces have a glyph, one of them is seen in the test split only.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw, ImageFont
from torch import Generator, Tensor

from mergebook.suites.data import media
from mergebook.suites.data.sampling import balanced_labels
from mergelib.hashing import stable_seed
from mergelib.messages.brief import Brief

SIDE = 32
MASK_SIDE = 96
BATCH = 512
Rendered = tuple[tuple[str, ...], list[tuple[Tensor, Tensor]]]  # class names; images and labels

# In this order the last face that has a glyph is the one held out of training.
FACES = (
    *("DejaVuSans", "DejaVuSans-Bold", "DejaVuSerif", "DejaVuSansMono", "DejaVuSerif-Bold"),
    *("DejaVuSansMono-Bold", "DejaVuSans-Oblique", "DejaVuSansMono-Oblique"),
    *("DejaVuSans-BoldOblique", "DejaVuSerif-BoldItalic", "DejaVuSerif-Italic"),
)


@dataclass(frozen=True)
class Script:
    """Characters, and the media that they are painted in."""

    characters: str
    medium: media.Medium
    whole_cell: bool = False  # keep the place within the line, which tells Braille apart
    fill: float = 0.72  # share of the side that a glyph spans before the random scaling
    similarity: float = 0.93  # correlation above which glyphs are look-alikes


# The order matters: glyphs8 are the first eight, glyphs14 the first fourteen.
SCRIPTS: dict[str, Script] = {
    "greek": Script("ΓΔΘΛΞΠΣΦΨΩαβγδεζηλμξπφψω", media.ink),
    "arrows": Script("←↑→↓↖↗↘↙↔↕↩↪↯↰↱↺↻⇄⇅⇇⇑⇛⇝⇦", media.neon),
    "braille": Script("⠋⠙⠓⠚⠇⠍⠝⠏⠟⠗⠎⠞⠥⠧⠺⠭⠽⠵⠯⠿⠷⠮⠾⠻", media.emboss, whole_cell=True, fill=0.95),
    "hebrew": Script("אבגדהוזחטילמנסעפצקשתךםףץ", media.chalk),
    "chess": Script("♔♕♖♗♘♙♚♛♜♝♞♟", media.wood, similarity=0.97),
    "syllabics": Script("ᐃᐊᐅᐱᐸᑎᑕᑫᑯᑲᒉᒋᒍᒥᓇᓂᓭᓯᓴᔨᔭ", media.halftone),
    "tifinagh": Script("ⴰⴱⴳⴷⴻⴼⴽⵀⵃⵄⵅⵇⵉⵎⵓⵔⵖⵙⵛⵟⵢⵣ", media.pixels),
    "dingbats": Script("✁✂✆✈✉✌✍✎✒✓✗✝✡✪✯✱✿❀❄❖❤❥➜❡", media.watermark),
    "cyrillic": Script("БГДЖИЛУЦЧШЩЪЫЭЮЯЂЉѢѦѪѮѰ", media.stencil),
    "arabic": Script("ابتجحدرسشصطعفقكلمنهويءةث", media.screen),
    "operators": Script("∀∂∃∅∇∈∏∑√∝∞∠∧∪∫∮∴≈≠≡≤⊂⊕⊗", media.blueprint),
    "hexagrams": Script("䷀䷁䷂䷇䷊䷋䷎䷏䷖䷗䷚䷛䷜䷝䷾䷿", media.gold, fill=0.84, similarity=0.99),
    "georgian": Script("აბგდევზთიკლმნოპჟრსტუფქღყ", media.motion),
    "currency": Script("₠₡₢₣₤₦₧₨₩₪₫€₭₮₯₰₱₲₳₴₵₸₹₺", media.coin),
    "geometric": Script("■□▣▤▥▦▧▲△▶▼◀◆◇◈◉◎●◐◑◒◔◕◢", media.mosaic),
    "roman": Script("ⅡⅢⅣⅥⅦⅧⅨⅪⅫↀↁↂↃ", media.marble),
    "suits": Script("♠♡♢♣♤♥♦♧♩♪♫♬♭♮♯", media.weave),
    "zodiac": Script("♈♉♊♋♌♍♎♏♐♑♒♓☿♀♁♂♃♄♅♆♇", media.sky),
    "dice": Script("⚀⚁⚂⚃⚄⚅☐☑☒☓", media.heat, similarity=0.99),
    "symbols": Script("☀☁☂☃★☆☎☏☕☘☛☝☠☢☣☤☥☦☪☭☮☯☸⚓", media.glass),
}

# Never a task of a suite: Latin and its kin, Armenian, N'Ko, Lao, Ogham, Lisu, Old Italic, …,
# without the characters that look like one of a task.
PRETRAINING = Script(
    "0123456789ABCDEFGHJKLMNOPQRSTVWXYZabdefghjkmnpqrt#$%&*+?@ÆÐÞßæðøĦŒƏƔƢƧƱƷǤȜ"
    "ԱԲԳԴԵԶԷԸԹԺԻԽԾԿՀՁՃՄՅՆՇՉՊՋՌՎՏՐՒՔՖաբգդեէըթժիլխծկձճմնչպջռվտրփքֆ"
    "ɐɟɥɨɫɮɱɷɺɽʃʆʉʕʛʞʡʤʧʪʭߌߍߎߏߐߑߒߓߔߕߖߗߘߚߛߝߞߟߢߣߤߥ"
    "ກຂຄງຈຊຍດຕຖທນບປຜຝພມຣລວສຫອຮᚁᚂᚃᚄᚅᚆᚇᚈᚉᚊᚋᚌᚍᚎᚏᚑᚒᚓᚕᚖᚗᚘᚙᚚꓘꓞꓤꓶ"
    "℀℃℅ℒℓ№℗℘ℜ℞℥℺⅃⅄⅋𐌂𐌃𐌄𐌅𐌊𐌌𐌎𐌐𐌑𐌒𐌓𐌔𐌕𐌖𐌘𐌚𐌛𐌜𐌝┑┖┛┠┥┯┴┾",
    media.plain,
)


@functools.cache
def _face(name: str) -> tuple[ImageFont.FreeTypeFont, frozenset[int]]:
    """A font at drawing size and the code points it has."""
    import matplotlib
    from matplotlib.ft2font import FT2Font

    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{name}.ttf"
    return ImageFont.truetype(str(path), 80), frozenset(FT2Font(str(path)).get_charmap())


def _draw(character: str, face: str, whole_cell: bool, fill: float) -> np.ndarray:
    """Coverage of a glyph in [0, 1], float32 (MASK_SIDE, MASK_SIDE), centred."""
    font, _ = _face(face)
    canvas = Image.new("L", (320, 200))
    ImageDraw.Draw(canvas).text((100, 40), character, font=font, fill=255)
    box = canvas.getbbox()
    if box is None:
        raise ValueError(f"glyph U+{ord(character):04X} of {face} is blank")
    if whole_cell:
        width, (ascent, descent) = font.getlength(character), font.getmetrics()
        box = (100, 40, 100 + round(width), 40 + ascent + descent)
    glyph = canvas.crop(box)
    scale = fill * MASK_SIDE / max(glyph.size)
    size = (max(1, round(glyph.width * scale)), max(1, round(glyph.height * scale)))
    square = Image.new("L", (MASK_SIDE, MASK_SIDE))
    corner = ((MASK_SIDE - size[0]) // 2, (MASK_SIDE - size[1]) // 2)
    square.paste(glyph.resize(size, Image.Resampling.LANCZOS), corner)
    return np.asarray(square, dtype=np.float32) / 255


@dataclass(frozen=True, repr=False)
class GlyphSet(Brief):
    """Masks of the distinct glyphs of a script in every face."""

    class_names: tuple[str, ...]
    masks: Tensor  # (M, 1, MASK_SIDE, MASK_SIDE)
    training: tuple[Tensor, ...]  # rows of the masks that may be used, by class
    testing: tuple[Tensor, ...]


@functools.cache
def glyph_set(script: Script) -> GlyphSet:
    """Every character in every face that has it, without look-alikes and faces that draw alike."""
    rows: list[Tensor] = []
    firsts: list[Tensor] = []
    names, training, testing = [], [], []
    for character in dict.fromkeys(script.characters):
        drawn = _distinct_faces(character, script.whole_cell, script.fill)
        if not drawn:
            continue
        signature = _signature(drawn[0])
        if any(float(signature @ other) > script.similarity for other in firsts):
            continue
        index = len(rows) + torch.arange(len(drawn))
        rows.extend(drawn)
        firsts.append(signature)
        names.append(character)
        training.append(index[:-1] if len(drawn) >= 3 else index)
        testing.append(index)
    if not rows:
        raise ValueError(f"no font face has any of the characters {script.characters!r}")
    masks = torch.stack(rows)[:, None]
    return GlyphSet(tuple(names), masks, tuple(training), tuple(testing))


def _distinct_faces(character: str, whole_cell: bool, fill: float) -> list[Tensor]:
    drawn: list[Tensor] = []
    for face in FACES:
        if ord(character) in _face(face)[1]:
            mask = torch.from_numpy(_draw(character, face, whole_cell, fill))
            if all(float((mask - other).abs().mean()) > 0.004 for other in drawn):
                drawn.append(mask)
    return drawn


def _signature(mask: Tensor) -> Tensor:
    """Unit vector of a blurred, shrunken, centred mask: its dot products are correlations."""
    small = media.blur(F.avg_pool2d(mask[None, None], MASK_SIDE // SIDE), 1.0).flatten()
    small = small - small.mean()
    unit: Tensor = small / small.norm()
    return unit


@dataclass(frozen=True)
class Jitter:
    """How far a glyph is moved at random before it is painted; lengths are in half sides."""

    angle: float
    zoom: tuple[float, float]  # divides its size
    shear: float
    shift: float
    warp: float = 0.0  # size of smooth distortions
    crowd: float = 0.0  # chance of a neighbour on either side, as in a line of text


CALM = Jitter(angle=math.pi / 12, zoom=(0.92, 1.4), shear=0.2, shift=0.22)
WILD = Jitter(angle=math.pi / 12, zoom=(0.92, 1.5), shear=0.25, shift=0.24, warp=0.055, crowd=0.4)


def render(
    glyphs: GlyphSet,
    labels: Tensor,
    medium: media.Medium,
    jitter: Jitter,
    generator: Generator,
    *,
    held_out: bool,
) -> Tensor:
    """One image per label: uint8 (N, 3, 32, 32); `held_out` allows the faces held out."""
    if len(labels) == 0:
        return torch.empty(0, 3, SIDE, SIDE, dtype=torch.uint8)
    choices = glyphs.testing if held_out else glyphs.training
    counts = torch.tensor([len(c) for c in choices])
    table = torch.nn.utils.rnn.pad_sequence(list(choices), batch_first=True)
    images = []
    for batch in labels.split(BATCH):
        pick = (torch.rand(len(batch), generator=generator) * counts[batch]).long()
        points = _places(len(batch), jitter, generator)
        mask = _sample(glyphs.masks[table[batch, pick]], points)
        if jitter.crowd:
            others = glyphs.masks[torch.cat(choices)]
            mask = mask.maximum(_neighbours(others, points, jitter, generator))
        picture = medium(F.avg_pool2d(mask, 2), generator)
        images.append((255 * picture).round().clamp(0, 255).to(torch.uint8))
    return torch.cat(images)


def _places(count: int, jitter: Jitter, generator: Generator) -> Tensor:
    """Where in a mask each point of an image of twice the side lies: (count, 64, 64, 2)."""

    def draw(low: float, high: float) -> Tensor:
        return media.uniform(low, high, (count,), generator)

    angle = draw(-jitter.angle, jitter.angle)
    zoom, stretch, shear = draw(*jitter.zoom), draw(0.88, 1.14), draw(-jitter.shear, jitter.shear)
    cos, sin, shift = torch.cos(angle), torch.sin(angle), jitter.shift
    top = torch.stack([zoom * stretch * cos, zoom * (shear - sin), draw(-shift, shift)], dim=1)
    bottom = torch.stack([zoom * sin, zoom / stretch * cos, draw(-shift, shift)], dim=1)
    theta = torch.stack([top, bottom], dim=1)
    points = F.affine_grid(theta, [count, 1, 2 * SIDE, 2 * SIDE], align_corners=False)
    if not jitter.warp:
        return points
    waves = torch.randn(count, 2, 4, 4, generator=generator)
    waves = F.interpolate(waves, (2 * SIDE, 2 * SIDE), mode="bicubic", align_corners=False)
    return points + jitter.warp * waves.permute(0, 2, 3, 1)


def _sample(masks: Tensor, points: Tensor) -> Tensor:
    return F.grid_sample(masks, points, align_corners=False)


def _neighbours(masks: Tensor, points: Tensor, jitter: Jitter, generator: Generator) -> Tensor:
    """Random glyphs to the left and right of the one at `points`: (N, 1, 64, 64)."""
    drawn = torch.zeros(len(points), 1, 2 * SIDE, 2 * SIDE)
    for offset in (-1.65, 1.65):
        rows = torch.randint(len(masks), (len(points),), generator=generator)
        present = torch.rand(len(points), generator=generator) < jitter.crowd
        side = _sample(masks[rows[present]], points[present] + torch.tensor([offset, 0.0]))
        drawn[present] = drawn[present].maximum(side)
    return drawn


def render_task(name: str, sizes: Sequence[int], seed: int) -> Rendered:
    """Class names and (images, labels) of a script's splits; only the last uses held-out faces."""
    if name not in SCRIPTS:
        raise ValueError(f"unknown script {name!r}; known: {', '.join(SCRIPTS)}")
    script = SCRIPTS[name]
    counts = dict(zip(("train", "validation", "test"), sizes, strict=True))
    return _rendered(script, counts, (script.medium,), WILD, ("glyphs", name), seed)


def render_pretraining(per_class: int, test_per_class: int, seed: int) -> Rendered:
    """Class names and (images, labels) of the training and test split for pretraining."""
    classes = len(glyph_set(PRETRAINING).class_names)
    counts = {"train": per_class * classes, "test": test_per_class * classes}
    return _rendered(PRETRAINING, counts, media.PLAIN_MEDIA, CALM, ("pretraining",), seed)


def _rendered(
    script: Script,
    counts: Mapping[str, int],
    painted: Sequence[media.Medium],
    jitter: Jitter,
    names: tuple[str, ...],
    seed: int,
) -> Rendered:
    """Class names and splits, the media in turn; the test split alone has held-out faces."""
    glyphs, splits = glyph_set(script), []
    for part, size in counts.items():
        generator = Generator().manual_seed(stable_seed(*names, part, seed))
        labels = balanced_labels(size, len(glyphs.class_names), generator)
        images = torch.empty(len(labels), 3, SIDE, SIDE, dtype=torch.uint8)
        for index, medium in enumerate(painted):
            rows, held_out = slice(index, None, len(painted)), part == "test"
            made = render(glyphs, labels[rows], medium, jitter, generator, held_out=held_out)
            images[rows] = made
        splits.append((images, labels))
    return glyphs.class_names, splits
