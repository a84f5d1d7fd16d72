"""Strings of many scripts for tokenizer tests: the same on every machine."""

from __future__ import annotations

from random import Random

CURATED = [
    "", " ", "  ", "\n", "\r\n\r\n", "\t\tx", "a  b   c", "x\n  y\n\n  z ", " \u3000\u00a0 ", "\u2028\u2029\x85",
    "Hello world", "I'm you'RE he'Ll they'VE don'T it's'd", "0123456789 3.14159 1e-7 １２３ ٣٤٥ ௧௨௩ Ⅷ ½",
    "def f(x):\n    return x**2  # naïve\n", "{\"a\": [1, 2.5, null], \"b\": \"\\u00e9\"}", "<html><b>x</b></html>",
    "Größe, Straße, Ærø, Łódź, İstanbul, ﬁne", "e\u0301 vs \u00e9, o\u0308\u0304, \u1112\u1161\u11ab, ﷺ",
    "русский текст и Ёлка", "Ελληνικά, ᾅ", "עברית שָׁלוֹם", "العربية مَرْحَبًا ـــ", "हिन्दी क्ष", "தமிழ் நி",
    "ไทยไม่มีเว้นวรรค", "မြန်မာ", "ខ្មែរ", "ქართული", "Հայերեն", "አማርኛ", "བོད་ཡིག", "中文沒有空格，標點。",
    "日本語とカタカナとｶﾅ", "한국어 띄어쓰기", "𠜎𠜱𡿺 𝔘𝔫𝔦 𝟘𝟙", "😀👍🏽👩‍👩‍👧🇩🇪❤️", "\u200b\u200c\u200d\u2060\ufeff",
    "\u202eabc\u202c", "\x00\x01\x1b[0m\x7f", "\ufffd\ufffe\U0010ffff",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n", "<|im_start|", "<think></think><think",
    "<tool_call>\n", "<|endoftext|><|endoftext|>x<|vision_start|><|image_pad|><|vision_end|>",
    "<|audio_start|><tts_pad><|audio_pad|>", "a" * 300, "ab" * 150, " " * 129, "\n" * 65, "9" * 70, "的" * 64,
    "!?" * 40, "a\u0300" * 20,
]  # fmt: skip

BLOCKS = [
    (0x20, 0x7E), (0xA0, 0x24F), (0x250, 0x36F), (0x370, 0x3FF), (0x400, 0x52F), (0x530, 0x5FF), (0x600, 0x6FF),
    (0x700, 0x8FF), (0x900, 0xDFF), (0xE00, 0xEFF), (0xF00, 0x109F), (0x10A0, 0x11FF), (0x1200, 0x139F),
    (0x13A0, 0x1CFF), (0x1D00, 0x1FFF), (0x2000, 0x2BFF), (0x2C00, 0x2FFF), (0x3000, 0x30FF), (0x3100, 0x33FF),
    (0x3400, 0x9FFF), (0xA000, 0xABFF), (0xAC00, 0xD7FF), (0xF900, 0xFFFD), (0x10000, 0x1FFFF), (0x20000, 0x3134F),
    (0xE0000, 0xE01EF),
]  # fmt: skip

COMMON = [
    "The ",
    "time",
    " of",
    "ing",
    "  ",
    "\n",
    "\n\n",
    " 42",
    ", ",
    ".\n",
    "'s",
    " don't",
    "的",
    "は",
    "и",
    "<|im_end|>",
    "_x",
]


def samples(count: int) -> list[str]:
    """Curated strings, then random ones: runs of one or more Unicode blocks mixed with common pieces."""
    random = Random(20)
    found = list(CURATED)
    while len(found) < count:
        blocks = random.sample(BLOCKS, random.randint(1, 3))
        pieces = []
        for _ in range(random.randint(1, 30)):
            low, high = random.choice(blocks)
            pieces.append(random.choice(COMMON) if random.random() < 0.3 else chr(random.randint(low, high)))
        found.append("".join(pieces))
    return found[:count]
