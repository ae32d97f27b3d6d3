"""Hostile texts for every type: made by its grammar, then changed a little."""

from __future__ import annotations

import datetime as dt
from random import Random

ODD = (
    *("", " ", "-", "+", ".", "-.", "e5", "1e", "1e+", "--1", "+-1", "1-", "(5)", "1_000", "0x1F", "0X1f"),
    *("0x1p3", "1d", "2F", "1L"),
    *("n/a", "null", "NULL", "None", "\\N", "NaN", "nan", "-NaN", "+NaN", "nan(1)", "Inf", "inf", "-Infinity"),
    *("+INFINITY", "infinit"),
    *("1,5", "1.234,50", "1,234.50", "1 234", "1'234", "٣", "１２", "Ⅷ", "½", "5 %", "€ 5", "1\n", "\t1"),
    *("1\x00", "1\u00a0", "\ufeff1"),
    *("1e400", "-1e400", "1e-400", "1e39", "3.4028235e38", "3.4028236e38", "1e-46", "4.9e-324", "2e-324"),
    *("0e400", "0e-400"),
    *("9" * 38, "9" * 39, "9" * 40, "1" + "0" * 50 + "e-50", "0." + "0" * 60 + "1", "1e99999999999"),
    *("0e99999999999", "1" * 5000),
    *("127", "128", "-128", "-129", "32767", "32768", "2147483648", "-2147483648", "9223372036854775807"),
    *("9223372036854775808",),
    *("true", "TRUE", "tRuE", "t", "yes", "y", "on", "1", "0", "f", "no", "truE ", "ﬁ"),
    *("2024", "2024-1", "2024-01", "2024-1-5", "2024-01-05", "20240105", "2024-01-05T", "2024-01-05 "),
    *("2024-01-05Tomorrow",),
    *("2024-01-05 junk", "2024-02-30", "2023-02-29", "2024-02-29", "1900-02-29", "0000-01-01", "0001-01-01"),
    *("9999-12-31",),
    *("10000-01-01", "20261-01-01", "+2024-01-05", "-2024-01-05", "1582-10-10", "2024/01/05", "05.01.2024"),
    *("2024-001-05", "٢٠٢٤-01-05"),
    *("12:34", "T12:34", "12:34:56", "T12", "2024-01-05 12", "2024-01-05T12:", "2024-01-05T12:34"),
    *("2024-01-05t12:34", "2024-01-05T12:34:"),
    *("2024-01-05 12:34:56.", "2024-01-05 12:34:56,5", "2024-01-05 12:34:56.1234567"),
    *("2024-01-05 12:34:56.123456000",),
    *("2024-01-05 24:00:00", "2024-01-05 23:59:60", "2024-01-05 12:60", "2024-01-05  12:34"),
    *("2024-01-05 12:34:56 Z", "2024-01-05Z"),
    *("2024-01-05 12:34z", "2024-01-05 12:34+1", "2024-01-05 12:34+01", "2024-01-05 12:34+0100"),
    *("2024-01-05 12:34+01:00:30",),
    *("2024-01-05 12:34+18:00", "2024-01-05 12:34-18:00", "2024-01-05 12:34+18:01", "2024-01-05 12:34+19"),
    *("2024-01-05 12:34+01:60",),
    *("2024-01-05 12:34 Europe/Berlin", "2024-01-05 12:34 UTC", "2024-01-05 12:34UTC+1"),
    *("2024-01-05 12:34[UTC]", "2024-01-05 12:34CET"),
    *("0001-01-01 00:00+01:00", "9999-12-31 23:59:59.999999-01:00", "2024-01-05 12:34-00:00"),
    *("2024-01-05T12:34:56.000000000Z",),
    *("2024-01-05 12:34:56+01:00:00", "2024-01-05 12:34:56+01:00:30"),
    *("epoch", "now", "today", "infinity", "1704455696", "-1", "2024-W01-1", "2024-366", "Jan 5, 2024"),
    *("2024-01-05 12:34:56 PM",),
)  # fmt: skip
"""Texts that parsers are known to read differently."""

_SIGNS = "0123456789+-.,eEtTzZ:/ _'xdfNaInf\t\n\u00a0٣１€"
_DIGITS = "0123456789"


def texts(seed: int, amount: int) -> list[str]:
    """Return all of `ODD`, and an amount of made texts: a third of them as the grammar wants them, others changed."""
    random = Random(seed)
    makers = (_whole, _number, _date, _time, _time)
    made = [random.choice(makers)(random) for _ in range(amount)]
    return [*ODD, *(text if random.random() < 0.35 else _changed(random, text) for text in made)]


def _digits(random: Random, least: int, most: int) -> str:
    return "".join(random.choice(_DIGITS) for _ in range(random.randint(least, most)))


def _whole(random: Random) -> str:
    return random.choice(["", "", "-", "+"]) + _digits(random, 1, random.choice([3, 5, 10, 19, 20, 40]))


def _number(random: Random) -> str:
    whole, behind = _digits(random, 0, random.choice([2, 9, 38])), _digits(random, 0, random.choice([0, 2, 3, 12, 40]))
    point = "." if behind or random.random() < 0.3 else ""
    power = random.choice(
        ["", "", "", f"e{random.randint(-50, 50)}", f"E+{random.randint(0, 400)}", f"e-{random.randint(0, 400)}"]
    )
    return random.choice(["", "", "-", "+"]) + whole + point + behind + power


def _date(random: Random) -> str:
    year = random.choice(
        ["0000", "0001", "1500", "1582", "1900", "1969", "2000", "2023", "2024", "9999", "10000", "24"]
    )
    month, day = random.randint(0, 13), random.choice([0, 1, 5, 10, 15, 28, 29, 30, 31, 32])
    form = random.choice(["{}-{:02}-{:02}", "{}-{:02}-{:02}", "{}-{:02}-{:02}", "{}-{}-{}", "{}{:02}{:02}", "{}-{:02}"])
    return form.format(year, month, day)


def _time(random: Random) -> str:
    hour, minute, second = random.randint(0, 25), random.randint(0, 61), random.randint(0, 61)
    clock = random.choice(["{:02}:{:02}:{:02}", "{:02}:{:02}:{:02}", "{:02}:{:02}", "{}:{}:{}", "{:02}"]).format(
        hour, minute, second
    )
    fraction = random.choice(["", "", "." + _digits(random, 0, 12), "." + _digits(random, 1, 6) + "000"])
    zones = [
        "",
        "",
        "Z",
        "+01:00",
        "-0930",
        "+14",
        "+1:00",
        " Z",
        " UTC",
        "Europe/Berlin",
        "+18:00",
        "-18:30",
        "+05:3",
        "z",
    ]
    day = (
        _date(random)
        if random.random() < 0.5
        else f"20{random.randint(10, 99)}-0{random.randint(1, 9)}-1{random.randint(0, 9)}"
    )
    return day + random.choice([" ", "T", "T", "  ", ""]) + clock + fraction + random.choice(zones)


def _changed(random: Random, text: str) -> str:
    for _ in range(random.choice([1, 1, 2])):
        place = random.randint(0, len(text))
        inserted = random.choice(["", random.choice(_SIGNS)])
        text = text[:place] + inserted + text[place + (not inserted or random.random() < 0.5) :]
    return text


FORMATS = {
    "yyyy-MM-dd": "%Y-%m-%d",
    "dd.MM.yyyy": "%d.%m.%Y",
    "d.M.yyyy H:m": "%-d.%-m.%Y %-H:%-M",
    "yyyyMMdd": "%Y%m%d",
    "yyyyMMddHHmmss": "%Y%m%d%H%M%S",
    "yyyyMMddHHmmssSSS": "%Y%m%d%H%M%S125",
    "MM/dd/yyyy hh:mm a": "%m/%d/%Y %I:%M %p",
    "yyyy-MM-dd'T'HH:mm:ss[.SSSSSS][XXX]": "%Y-%m-%dT%H:%M:%S.%f+02:00",
    "d MMM yyyy": "%-d %b %Y",
    "MMMM d, yyyy": "%B %-d, %Y",
    "yyyy-DDD": "%Y-%j",
    "yy-M-d": "%y-%-m-%-d",
    "HH:mm": "%H:%M",
    "yyyy-MM-dd HH:mm:ss Z": "%Y-%m-%d %H:%M:%S -0330",
    "yyyy-MM-dd kk:mm:ssX": "%Y-%m-%d %H:%M:%SZ",
    "[yyyy-MM-dd][dd/MM/yyyy]": "%d/%m/%Y",
}
"""Java's pattern -> the pattern of Python that writes such texts."""


def formatted(seed: int, pattern: str, amount: int) -> list[str]:
    """Return texts written by a pattern, most of them changed."""
    random, made = Random(f"{seed} {pattern}"), []
    for _ in range(amount):
        moment = dt.datetime(1000, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=random.randrange(280_000_000_000))
        text = moment.replace(microsecond=random.randrange(1_000_000)).strftime(FORMATS[pattern])
        made.append(text if random.random() < 0.35 else _changed(random, text))
    return made
