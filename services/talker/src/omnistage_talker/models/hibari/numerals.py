"""Numbers that stand for something else than an amount, or are written unlike English amounts. Pure."""

from __future__ import annotations

import re

_PHONE = re.compile(
    r"(?<![\w.])(?:(?:\+?1[ .-]?)?\(\d{3}\)[ .-]?\d{3}[ .-]\d{4}|\+\d{1,3}(?:[ .-]?\(?\d{2,4}\)?){2,5}"
    r"|(?:1-)\d{3}-\d{3}-\d{4}|(?:1\.)?\d{3}\.\d{3}\.\d{4})(?!\d)"
)
_IP = re.compile(r"(?<![\w.])(\d{1,3}(?:\.\d{1,3}){3})(?::(\d+)|/(\d+))?(?!\.?\w)")
_DATE = re.compile(r"\d{1,2}\.\d{1,2}\.(?:19|20)\d\d")
_VERSION = re.compile(r"(?<![\d.,])(?:\b([A-Za-z]+))?(\d+(?:\.\d+){2,})(?!\.?\d)")
_RELEASED = "versions?|ver|release|python|node|java|php|ruby|perl|ubuntu|debian|kernel|ios|android|macos|cuda|pytorch"
_RELEASE = re.compile(
    rf"\b(?!(?:USD|EUR|GBP|CHF|US|Rs)\d)(?:([A-Za-z]+)(?=\d)|({_RELEASED})(?:[ /-]v?))(\d+)\.(\d{{1,2}})(?!\.?\d|\w)",
    re.IGNORECASE,
)
_CLOCK = re.compile(r"(?<![\w.])(\d{1,2})\.([0-5]\d)(?=\s?[ap]\.?m\b)", re.IGNORECASE)
_LAST_ZERO = re.compile(
    r"(?<![\w.,$£€¥])(?<!USD )(?<!EUR )(?<!GBP )(\d+)\.(\d*0)"
    r"(?!\.?\d|\w|\s?(?:[$£€¥]|dollars?\b|euros?\b|pounds?\b|USD|EUR|GBP))"
)
_SCIENTIFIC = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)[eE]([+-]?)(\d{1,3})(?![\w-])")
_ALWAYS = re.compile(r"(?<![\w/.])24/7(/365)?(?![\w/])")
_LEADING_ZERO = re.compile(r"(?<![\w.,:/-])(0\d{2,})(?![.,:/-]?\d|[^\W\d_])")
_AMOUNT_AFTER = r"\s?(?:[kcm]?m|[km]?g|lbs?|oz|m?l|L|km/h|mph|k?W|[kMG]?Hz|[kKMGT]B|percent|[mb]illion|trillion)\b"
_DECIMAL_COMMA = re.compile(
    rf"(?<![\d.,])(\d+),(\d{{1,2}}|\d{{4,}})(?!,?\d)(?:(?={_AMOUNT_AFTER}|\s?[%°€£])|(?<=[€£]\d,\d\d)|(?<=[€£]\d\d,\d\d))"
)
_COMMAS = re.compile(r"(?<![\d.,])\d+(?:,\d+)+")
_THOUSANDS = re.compile(r"\d{1,3}(?:,\d{3})+")
_LAKHS = re.compile(r"\d{1,2}(?:,\d{2})+,\d{3}")


def read_phone(text: str) -> str:
    """Telephone numbers of several groups, digit by digit."""
    return _PHONE.sub(_say_phone, text)


def _say_phone(found: re.Match[str]) -> str:
    number = found.group()
    groups = ", ".join(" ".join(group) for group in re.findall(r"\d+", number))
    return f"plus {groups}" if number.startswith("+") else groups


def read_ip(text: str) -> str:
    """Internet addresses: "192.168.0.1" is "one ninety-two dot one sixty-eight dot zero dot one"."""
    return _IP.sub(_say_ip, text)


def _say_ip(found: re.Match[str]) -> str:
    octets = found.group(1).split(".")
    if any(int(octet) > 255 for octet in octets):
        return found.group()
    said = " dot ".join(_say_octet(octet) for octet in octets)
    if found.group(2):
        return f"{said} port {found.group(2)}"
    return f"{said} slash {found.group(3)}" if found.group(3) else said


def _say_octet(octet: str) -> str:
    if len(octet) < 3 or octet.endswith("00"):
        return octet
    return f"{octet[0]} {octet[1:]}" if octet[1] != "0" and octet[0] != "0" else " ".join(octet)


def read_version(text: str) -> str:
    """Numbers of three parts and more: "2.0.1" is "two point zero point one"; dates are left alone."""
    return _VERSION.sub(_say_version, text)


def _say_version(found: re.Match[str]) -> str:
    if _DATE.fullmatch(found.group(2)):
        return found.group()
    said = " point ".join(_say_part(part) for part in found.group(2).split("."))
    return f"{found.group(1)} {said}" if found.group(1) else said


def _say_part(part: str) -> str:
    return " ".join(part) if part.startswith("0") else part


def read_release(text: str) -> str:
    """Versions of two parts, known by the word before: "python3.11" is "python three point eleven"."""
    return _RELEASE.sub(_say_release, text)


def _say_release(found: re.Match[str]) -> str:
    attached, word, major, minor = found.groups()
    return f"{attached or word} {_say_part(major)} point {_say_part(minor)}"


def read_clock(text: str) -> str:
    """Times written with a full stop: "9.30 pm"."""
    return _CLOCK.sub(r"\1:\2", text)


def read_last_zero(text: str) -> str:
    """Decimals that end in zero are said in full, prices apart: "2.0" is "two point zero"."""
    return _LAST_ZERO.sub(lambda found: f"{found.group(1)} point {' '.join(found.group(2))}", text)


def read_scientific(text: str) -> str:
    """Powers of ten: "1e-5" is "one times ten to the minus five"."""
    return _SCIENTIFIC.sub(
        lambda found: f"{found.group(1)} times 10 to the {'minus ' if found.group(2) == '-' else ''}{found.group(3)}",
        text,
    )


def read_always(text: str) -> str:
    """Round the clock: "24/7" is no fraction."""
    return _ALWAYS.sub(lambda found: "twenty-four seven" + (" three sixty-five" if found.group(1) else ""), text)


def read_leading_zero(text: str) -> str:
    """Codes that begin with zero, digit by digit: "007"."""
    return _LEADING_ZERO.sub(lambda found: " ".join(found.group(1)), text)


def read_decimal_comma(text: str) -> str:
    """A comma that cannot mark thousands, in an amount: "1,5 kg" is "1.5 kg"."""
    return _DECIMAL_COMMA.sub(r"\1.\2", text)


def read_comma_list(text: str) -> str:
    """Numbers set apart by commas alone: "1,2,3" is no hundred and twenty-three. Lakhs lose their commas."""
    return _COMMAS.sub(_say_commas, text)


def _say_commas(found: re.Match[str]) -> str:
    numbers = found.group()
    if _THOUSANDS.fullmatch(numbers):
        return numbers
    return numbers.replace(",", "" if _LAKHS.fullmatch(numbers) else ", ")
