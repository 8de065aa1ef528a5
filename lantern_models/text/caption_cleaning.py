"""The cleaning of the captions with which LlamaGen's targets were trained.

The targets have only seen captions that were cleaned twice. Their images therefore depend on every detail of the
cleaning: some words of letters and digits vanish, a comma gets a space after it, "free shipping" is removed. The
steps, their order and their mistakes are the same as in LlamaGen's code, which is called the *reference*. The test file
caption_clean.json holds the results of the reference for 68 captions.

Source: facts read from LlamaGen's language/t5.py (FoundationVision/LlamaGen@ce98ec4), which follows DeepFloyd IF.
"""

from __future__ import annotations

import html
import html.entities
import re
from html.parser import HTMLParser
from urllib.parse import unquote_plus

import ftfy
from typing_extensions import override

_HOST = r"[a-z0-9.\-]+[.](?:com|co|ru|net|org|edu|gov|it)[\w/-]*\b/?(?!@)"
_SUFFIX = r"(?:png|jpg|jpeg|bmp|webp|eps|pdf|apk|mp4)"


def _compile(steps: list[tuple[str, str]]) -> list[tuple[re.Pattern[str], str]]:
    return [(re.compile(pattern), replacement) for pattern, replacement in steps]


# Pairs (pattern, replacement), applied in order. These come first, on the caption in lower case with HTML markup.
_BEFORE_MARKUP = _compile(
    [
        (r"<person>", "person"),
        (rf"\b(?:https?:(?:/{{1,3}}|[a-z0-9%])|{_HOST})", ""),
        (rf"\b(?:www:(?:/{{1,3}}|[a-z0-9%])|{_HOST})", ""),
    ]
)
_AFTER_MARKUP = _compile(
    [
        (r"@\w+\b", ""),  # nicknames
        (r"[\u31c0-\u9fff]+", ""),  # strokes, katakana extensions, enclosed and unified ideographs
        # Every kind of dash.
        (
            r"[-\u058a\u05be\u1400\u1806\u2010-\u2015\u2e17\u2e1a\u2e3a\u2e3b\u2e40\u301c\u3030\u30a0\ufe31\ufe32\ufe58"
            r"\ufe63\uff0d]+",
            "-",
        ),
        ("[`´«»“”¨]", '"'),
        ("[‘’]", "'"),
        (r"&quot;?", ""),
        (r"&amp", ""),
        (r"\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}", " "),  # network addresses
        (r"\d:\d\d\s+$", ""),  # a time at the end
        (r"\\n", " "),  # a written-out line break
        (r"#\d{1,3}\b", ""),
        (r"#\d{5,}\b", ""),
        (r"\b\d{6,}\b", ""),
        (rf"\S+\.{_SUFFIX}", ""),
        (r"[\"']{2,}", '"'),
        (r"\.{2,}", " "),
        (r"[#®•©™&@·º½¾¿¡§~()\[\]{}|\\/*]+", " "),
        (r"\s+\.\s+", " "),
    ]
)
# These come last, after broken encodings are repaired and HTML entities are replaced.
_AFTER_MENDING = _compile(
    [
        (r"\b[a-zA-Z]{1,3}\d{3,15}\b", ""),  # serial numbers: jc6640, jc6640vc, 6640vc231
        (r"\b[a-zA-Z]+\d+[a-zA-Z]+\b", ""),
        (r"\b\d+[a-zA-Z]+\d+\b", ""),
        (r"(worldwide\s+)?(free\s+)?shipping", ""),  # the language of shops
        (r"(free\s)?download(\sfree)?", ""),
        (r"\bclick\b\s(?:for|on)\s\w+", ""),
        (rf"\b{_SUFFIX}(\simages?)?", ""),
        (r"\bpage\s+\d+\b", ""),
        (r"\b\d*[a-zA-Z]+\d+[a-zA-Z]+\d+[a-zA-Z\d]*\b", " "),
        (r"\b\d+\.?\d*[xх×]\d+\.?\d*\b", ""),  # sizes: 10×15, also with a Cyrillic x (10x15 is gone already)
        (r"\b\s+:\s+", ": "),
        (r"(\D[,./])\b", r"\1 "),
        (r"\s+", " "),
        # These do not match if there is a space at either end. The reference strips spaces first, but drops the result.
        (r"^[\"']([\w\W]+)[\"']$", r"\1"),
        (r"^['_,\-:;]", ""),
        (r"['_,\-:+]$", ""),
        (r"^\.\S+$", ""),
    ]
)
_JOINER = re.compile(r"[-_]")
_MAX_JOINERS = 3  # if a caption has more joiners, they are taken for separators of words, and replaced by spaces


def clean_caption(caption: str) -> str:
    """Clean a caption in two passes. The second matches patterns that appear as the first removes other text."""
    return _clean_once(_clean_once(caption))


def _clean_once(caption: str) -> str:
    caption = _substitute(unquote_plus(caption).strip().lower(), _BEFORE_MARKUP)
    caption = _substitute(_text_of_markup(caption), _AFTER_MARKUP)
    if len(_JOINER.findall(caption)) > _MAX_JOINERS:
        caption = _JOINER.sub(" ", caption)
    caption = html.unescape(html.unescape(ftfy.fix_text(caption))).strip()
    return _substitute(caption, _AFTER_MENDING).strip()


def _substitute(text: str, steps: list[tuple[re.Pattern[str], str]]) -> str:
    for pattern, replacement in steps:
        text = pattern.sub(replacement, text)
    return text


def _text_of_markup(markup: str) -> str:
    """Return the text of an HTML fragment, as Beautiful Soup extracts it with the standard library's parser."""
    parser = _TextParser()
    try:
        parser.feed(markup)
        parser.close()
    except AssertionError:  # a declaration that the parser refuses, such as "<![x"; the reference stops with an error
        return markup
    return "".join(parser.parts)


class _TextParser(HTMLParser):
    """An HTML parser that collects the text outside of scripts, styles, templates and ruby annotations in `parts`."""

    _SILENT = frozenset({"script", "style", "template", "rt", "rp"})
    # Tags without an end tag, which must not stay open.
    _VOID = frozenset(
        {
            *("area", "base", "basefont", "bgsound", "br", "col", "command", "embed", "frame", "hr", "image", "img"),
            *("input", "isindex", "keygen", "link", "menuitem", "meta", "nextid", "param", "source", "spacer", "track"),
            "wbr",
        }
    )

    def __init__(self) -> None:
        super().__init__(convert_charrefs=False)  # entities go to `handle_entityref` and `handle_charref`
        self.parts: list[str] = []
        self._open: list[str] = []

    @override
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self._VOID:
            self._open.append(tag)

    @override
    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass  # it holds no text, and must not stay open

    @override
    def handle_endtag(self, tag: str) -> None:
        if tag in self._open:
            # Tags that were opened within this one and never closed end with it.
            while self._open.pop() != tag:
                pass

    @override
    def handle_data(self, data: str) -> None:
        if not self._SILENT.intersection(self._open):
            self.parts.append(data)

    @override
    def handle_entityref(self, name: str) -> None:
        # Beautiful Soup replaces known entities with and without a semicolon, and drops the semicolon of others.
        self.handle_data(html.entities.html5.get(f"{name};", f"&{name}"))

    @override
    def handle_charref(self, name: str) -> None:
        self.handle_data(html.unescape(f"&#{name};"))

    @override
    def unknown_decl(self, data: str) -> None:
        if data.upper().startswith("CDATA["):
            self.parts.append(data[len("CDATA[") :])  # Beautiful Soup takes it for text in silent tags, too
