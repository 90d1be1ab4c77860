"""Spells out what the pronunciation rules of the package read wrongly, before they see it. Pure.

Each rule is a function from text to text; what the package reads well is left to it.
"""

from __future__ import annotations

import re

from omnistage_talker.models.hibari import addresses, numerals

_AMOUNT = r"\d+(?:,\d{3})*(?:\.\d+)?"
_HEIGHT = re.compile(r"(?<![\w.,'‘’\"])(\d{1,2})['’′]\s?(\d{1,2})(?:[\"”″]|''|’’|′′)?(?![\w'])")
_FEET_INCHES = re.compile(r"(?<![\w.,])(\d+)\s?ft\.?,?\s?(\d+(?:\.\d+)?)\s?in(?:\.(?=\s+[a-z,;])|\b)")
_MONEY = re.compile(rf"([$£€])\s?({_AMOUNT})\s?(bn|mn|mln|tn|trn|T|t)(?!\w)")
_BILLIONS = re.compile(rf"(?<![\w.,])({_AMOUNT})\s?bn(?!\w)")
_SCALES = {"bn": "billion", "mn": "million", "mln": "million", "tn": "trillion", "trn": "trillion", "t": "trillion"}
_UNIT = re.compile(
    rf"(?<![\w.,$£€/])((?:{_AMOUNT}\s)?\d/\d|{_AMOUNT}|(?:\d+\s?)?[½¼¾])"
    r"(?:\s?([Tt]bsp|[Tt]sp)s?\b(?:\.(?=\s+[a-z]))?|\s?([glL])(?!['’\w/])|\s(m)(?!['’\w/]))"
)
_UNITS = {"tbsp": "tablespoon", "tsp": "teaspoon", "g": "gram", "l": "liter", "m": "meter"}
_SINGULAR = re.compile(r"1|\d/\d|[½¼¾]")
_SHARP = re.compile(r"(?<![\w#])([A-J])#(?![\w#])")
_STREET = re.compile(r"\b([A-Z][a-z]+|\d+(?:st|nd|rd|th)) (Dr|St)\b(\.?)")
_STREETS = {"Dr": "Drive", "St": "Street"}
_NEXT_WORD = re.compile(r"\s+[\"'“‘(]?([A-Za-z]+)")
_NO_NAMES = re.compile(
    "And|Ask|Because|But|Call|Dear|Good|Hello|Hey|Hi|If|Is|My|No|Oh|Ok|Okay|Or|Our|See|So|Thank|Thanks|"
    "The|Then|This|To|Was|Well|When|Yes|Your"
)
_OPENERS = re.compile(
    "A|After|All|An|And|As|At|Before|But|By|For|From|He|Her|His|How|I|If|In|Is|It|Its|My|No|On|Our|She|"
    "So|That|The|Their|Then|There|These|They|This|Those|Turn|Was|We|What|When|Where|Who|Why|With|Yes|You|"
    "Your"
)


def normalize(text: str) -> str:
    """The text as the pronunciation rules should get it."""
    for rule in RULES:
        text = rule(text)
    return text


def read_height(text: str) -> str:
    """Feet and inches as marks: 6'2" is "six foot two"."""
    return _HEIGHT.sub(r"\1 foot \2", text)


def read_feet_inches(text: str) -> str:
    """Feet and inches as words: "6ft 2in" is "six feet two inches"."""
    return _FEET_INCHES.sub(
        lambda found: (
            f"{found.group(1)} {'foot' if found.group(1) == '1' else 'feet'} "
            f"{found.group(2)} {'inch' if found.group(2) == '1' else 'inches'}"
        ),
        text,
    )


def read_money(text: str) -> str:
    """Large sums in short forms that the package does not know: "$3bn", "£2mn"; and "3bn" of anything."""
    sums = _MONEY.sub(lambda found: f"{found.group(1)}{found.group(2)} {_SCALES[found.group(3).lower()]}", text)
    return _BILLIONS.sub(r"\1 billion", sums)


def read_unit(text: str) -> str:
    """Units that the package does not know: spoons, grams, liters, and meters after a space."""
    return _UNIT.sub(_say_unit, text)


def _say_unit(found: re.Match[str]) -> str:
    amount, spoon, short, meter = found.groups()
    unit = _UNITS[(spoon or short or meter).lower()]
    return f"{amount} {unit}" if _SINGULAR.fullmatch(amount) else f"{amount} {unit}s"


def read_sharp(text: str) -> str:
    """Notes and languages: "C#" is "C sharp"."""
    return _SHARP.sub(r"\1 sharp", text)


def read_street(text: str) -> str:
    """ "Elm Dr." is a drive and "Elm St." a street, unless a name follows: "Ask Dr. Smith"."""
    return _STREET.sub(_say_street, text)


def _say_street(found: re.Match[str]) -> str:
    name, short, stop = found.groups()
    following = _NEXT_WORD.match(found.string, found.end())
    opener = following is not None and _OPENERS.fullmatch(following.group(1)) is not None
    if _NO_NAMES.fullmatch(name) or (following is not None and following.group(1)[0].isupper() and not opener):
        return found.group()
    ends = opener or not found.string[found.end() :].strip("\"'”’)* ")
    return f"{name} {_STREETS[short]}{stop if ends else ''}"


RULES = (
    addresses.read_email,
    addresses.read_url,
    numerals.read_phone,
    numerals.read_ip,
    numerals.read_version,
    numerals.read_release,
    numerals.read_clock,
    numerals.read_scientific,
    numerals.read_always,
    numerals.read_decimal_comma,
    numerals.read_comma_list,
    numerals.read_leading_zero,
    read_height,
    read_feet_inches,
    read_money,
    read_unit,
    numerals.read_last_zero,
    read_sharp,
    read_street,
)
"""In the order in which they are applied: addresses first, since they contain what other rules look for."""
