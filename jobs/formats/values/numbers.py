"""Texts of whole numbers, decimals and floating numbers."""

from __future__ import annotations

import re
from decimal import ROUND_HALF_UP, Context, Decimal, Inexact

import pyarrow as pa
import pyarrow.compute as pc

from drainmark.jobs.formats.bad_records import CAPS
from drainmark.jobs.formats.values.reader import Reader, bytes_of, matches, where

_WHOLE = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_FLOATING = rf"{_NUMBER.pattern}|[+-]?(?:NaN|Infinity|Inf)"
_NOT_ZERO = r"\A[^eE]*[1-9]"
_WIDEST = 38
"""Digits of the widest decimal. Arrow's cast of a text overflows in silence if it needs more in between."""


def _context() -> Context:
    """Return a context in which no text of at most `CAPS.number_digits` characters is rounded or too large."""
    return Context(prec=2 * CAPS.number_digits, Emax=10**8, Emin=-(10**8), rounding=ROUND_HALF_UP)


class WholeNumbers(Reader):
    """Texts of `tinyint`, `smallint`, `int` or `bigint`."""

    def __init__(self, name: str, kind: pa.DataType) -> None:
        self.name, self.kind = name, kind
        self.bound = 1 << (kind.bit_width - 1)

    def all_at_once(self, texts: pa.Array) -> pa.Array | None:
        data = bytes_of(texts)
        is_hexadecimal = b"x" in data or b"X" in data  # Arrow would take 0x1F for 31
        return None if is_hexadecimal else pc.cast(texts, self.kind)

    def most(self, texts: pa.Array) -> pa.Array:
        wide = pc.cast(_without_plus(where(matches(texts, "[+-]?[0-9]{1,18}"), texts)), pa.int64())
        fits = pc.and_(pc.greater_equal(wide, -self.bound), pc.less_equal(wide, self.bound - 1))
        return pc.cast(where(fits, wide), self.kind)

    def one(self, text: str) -> int | None:
        if not _WHOLE.fullmatch(text):
            return None
        digits = text.lstrip("+-").lstrip("0")
        value = int(digits[:20] or "0") * (-1 if text.startswith("-") else 1)  # 20 digits are too many for any
        return value if -self.bound <= value < self.bound else None

    def why_not(self, text: str) -> str:
        if _WHOLE.fullmatch(text):
            return f"is no {self.name}: it is not from {-self.bound} to {self.bound - 1}"
        if _NUMBER.fullmatch(text):
            return f"is no {self.name}: it has a point or an exponent"
        return f"is no {self.name}{_hint(text)}"


class Decimals(Reader):
    """Texts of `decimal(precision,scale)`; `rounds`: digits behind the scale are rounded half up."""

    def __init__(self, precision: int, scale: int, rounds: bool) -> None:
        self.kind, self.scale, self.rounds = pa.decimal128(precision, scale), scale, rounds
        self.name, self.before = f"decimal({precision},{scale})", precision - scale
        self.limit = Decimal(10) ** self.before
        whole = f"[0-9]{{1,{self.before}}}" if self.before else "0"
        self.usual = rf"[+-]?{whole}(?:\.{'[0-9]*' if rounds else f'[0-9]{{0,{scale}}}0*'})?"

    def all_at_once(self, texts: pa.Array) -> pa.Array | None:
        data = bytes_of(texts)
        widest = _WIDEST if self.rounds else _WIDEST - self.scale
        if b"e" in data or b"E" in data or (pc.max(pc.binary_length(texts)).as_py() or 0) > widest:
            return None
        return pc.cast(self._rounded(texts) if self.rounds else texts, self.kind)  # refuses digits that it cannot hold

    def most(self, texts: pa.Array) -> pa.Array:
        is_short = pc.less_equal(pc.binary_length(texts), _WIDEST)
        usual = where(pc.and_(is_short, matches(texts, self.usual)), texts)
        if not self.rounds:
            return pc.cast(usual, self.kind)
        rounded = self._rounded(usual)
        greatest = Decimal(f"{'9' * self.kind.precision}e-{self.scale}")
        fits = pc.less_equal(pc.abs(rounded), pa.scalar(greatest, rounded.type))
        return pc.cast(where(fits, rounded), self.kind)

    def _rounded(self, texts: pa.Array) -> pa.Array:
        """Return the rounded values of texts without exponents, of at most `_WIDEST` bytes."""
        exact = pc.cast(texts, pa.decimal256(2 * _WIDEST, _WIDEST))
        return pc.round(exact, self.scale, "half_towards_infinity")

    def one(self, text: str) -> Decimal | None:
        number = self._number(text)
        if number is None:
            return None
        context = _context()
        value = number.quantize(Decimal(1).scaleb(-self.scale), context=context)
        return value if value.copy_abs() < self.limit and (self.rounds or not context.flags[Inexact]) else None

    def why_not(self, text: str) -> str:
        if not _NUMBER.fullmatch(text):
            return f"is no {self.name}{_hint(text)}"
        if len(text) > CAPS.number_digits:
            return f"is no {self.name}: it has more than {CAPS.number_digits} characters"
        number = self._number(text)
        if number is None or number.copy_abs() >= self.limit or self.rounds:
            return f"is no {self.name}: it has more than {self.before} digits before the point"
        return f"is no {self.name}: it has more than {self.scale} digits behind the point"

    def _number(self, text: str) -> Decimal | None:
        """Return a number; None for a text that is none, is too long, or names a number too large for every type.

        A number too small for every type becomes another one that is too small: to hold its digits would take minutes.
        """
        if len(text) > CAPS.number_digits or not _NUMBER.fullmatch(text):
            return None
        mantissa, _, power = text.lower().partition("e")
        value = Decimal(mantissa)
        if not value:
            return Decimal(0)
        digits = power.lstrip("+-").lstrip("0")
        exponent = int(digits[:7] or "0") * (-1 if power.startswith("-") else 1)  # 7 digits outweigh any mantissa
        places = value.adjusted() + exponent
        if places < -CAPS.number_digits:
            return Decimal(1).scaleb(-_WIDEST - 2).copy_sign(value)
        return value.scaleb(exponent, _context()) if places < _WIDEST else None


class FloatingNumbers(Reader):
    """Texts of `float` or `double`."""

    def __init__(self, name: str, kind: pa.DataType) -> None:
        self.name, self.kind = name, kind

    def all_at_once(self, texts: pa.Array) -> pa.Array | None:
        values = pc.cast(texts, self.kind)
        is_usual = pc.all(pc.is_finite(values)).as_py() is not False  # Arrow knows more names of NaN and infinity
        return values if is_usual and not pc.any(_is_lost(texts, values)).as_py() else None

    def most(self, texts: pa.Array) -> pa.Array:
        texts = where(matches(texts, _FLOATING), texts)
        values = pc.cast(_without_plus(texts), self.kind)
        return where(pc.invert(_is_lost(texts, values)), values)

    def one(self, text: str) -> float | None:
        found: float | None = self.most(pa.array([text]))[0].as_py()  # the cast rounds to the nearest
        return found

    def why_not(self, text: str) -> str:
        if not _NUMBER.fullmatch(text):
            return f"is no {self.name}{_hint(text)}"
        value = pc.cast(_without_plus(pa.array([text])), self.kind)[0].as_py()
        return f"is too {'small' if value == 0 else 'large'} for a {self.name}"


def _is_lost(texts: pa.Array, values: pa.Array) -> pa.Array:
    """Say of each number whether it became zero or infinity."""
    is_suspicious = pc.or_(pc.equal(values, 0), pc.is_inf(values))
    if not pc.any(is_suspicious).as_py():
        return is_suspicious
    lost = pc.match_substring_regex(texts.filter(is_suspicious), _NOT_ZERO)  # they are few, and a look at all is long
    return pc.replace_with_mask(is_suspicious, is_suspicious, lost).fill_null(False)


def _without_plus(texts: pa.Array) -> pa.Array:
    return pc.replace_substring_regex(texts, r"\A\+", "") if b"+" in bytes_of(texts) else texts


# --- reasons --------------------------------------------------------------------------------------------------------

# Each form takes time by the length of a text, and not by its square: a field may have megabytes.
_HINTS = (
    (r"", "it is empty"),
    (r"\s.*|.*\s", "it has spaces around it"),
    (r"[+-]?\d{1,3}(?:[,.'’\s]\d{3})+(?:[.,]\d*)?", "write no separators of thousands"),
    (r"[+-]?\d*,\d+", "write the decimal point as '.'"),
    (r"[+-]?0[xX][0-9a-fA-F]+(?:p.*)?", "hexadecimal numbers are not read"),
    (r"[+-]?\d++_[\d_.]*", "write no '_' between digits"),
    (r"(?i)[+-]?(?:nan|inf|infinity)", "only a double or float has NaN, Infinity and Inf, and only so written"),
    (r"\(\D*+\d.*\)|.*\d-", "write the sign before the number"),
    (r"[+-]?[\d.,]+\s*%", "write no percent sign"),
    (r"[^\d.+-]{1,3}\s*[+-]?[\d.,]+|[+-]?[\d.,]+\s*[^\d.]{1,3}", "write the number alone"),
)


def _hint(text: str) -> str:
    """Return what is wrong with a text that is no number, behind a colon; nothing if there is no telling."""
    if _NUMBER.fullmatch("".join("0" if sign.isdecimal() else sign for sign in text)):
        return ": write its digits as 0 to 9"
    return next((f": {hint}" for form, hint in _HINTS if re.fullmatch(form, text, re.DOTALL)), "")
