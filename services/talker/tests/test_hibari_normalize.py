"""What is spelled out before the package's pronunciation rules: each rule alone, then the package's reading."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from omnistage_talker.models.hibari import addresses, normalize, numerals
from omnistage_talker.models.hibari.phonemes import Pronouncer, load_pronouncer

EXAMPLES: dict[Callable[[str], str], list[tuple[str, str]]] = {
    addresses.read_email: [
        ("Write to john.doe@example.com.", "Write to john dot doe at example dot com."),
        ("a_b+c@x-y.co.uk!", "a underscore b plus c at x dash y dot co dot uk!"),
        ("mailto:me@x.org", "me at x dot org"),
        ("@user and a @ b", "@user and a @ b"),
    ],
    addresses.read_url: [
        ("See www.example.com/path here.", "See w w w dot example dot com slash path here."),
        ("(https://www.foo.org/)", "(w w w dot foo dot org)"),
        ("https://x.io/a-b?c=1&d#e, ok?", "x dot io slash a dash b question mark c equals 1 and d hash e, ok?"),
        ("http://localhost:8080/", "localhost colon 8080"),
        ("Go to Example.com.", "Go to Example dot com."),
        ("open.ai or x.ai", "open dot AI or x dot AI"),
        ("e.g. this, U.S. and file.txt and end.Then", "e.g. this, U.S. and file.txt and end.Then"),
        ("the dot-com boom, and/or", "the dot-com boom, and/or"),
    ],
    numerals.read_phone: [
        ("Call (555) 123-4567 now", "Call 5 5 5, 1 2 3, 4 5 6 7 now"),
        ("+1 (555) 123-4567", "plus 1, 5 5 5, 1 2 3, 4 5 6 7"),
        ("+44 20 7946 0958.", "plus 4 4, 2 0, 7 9 4 6, 0 9 5 8."),
        ("555.123.4567", "5 5 5, 1 2 3, 4 5 6 7"),
        ("1-800-555-0199", "1, 8 0 0, 5 5 5, 0 1 9 9"),
        ("(555) people, +5 points", "(555) people, +5 points"),
    ],
    numerals.read_ip: [
        ("at 192.168.0.1.", "at 1 92 dot 1 68 dot 0 dot 1."),
        ("127.0.0.1:8080", "1 27 dot 0 dot 0 dot 1 port 8080"),
        ("10.100.101.0/24", "10 dot 100 dot 1 0 1 dot 0 slash 24"),
        ("999.1.1.1 and 1.2.3", "999.1.1.1 and 1.2.3"),
    ],
    numerals.read_version: [
        ("version 2.0.1.", "version 2 point 0 point 1."),
        ("v1.2.3 and python3.11.2", "v 1 point 2 point 3 and python 3 point 11 point 2"),
        ("1.04.10.19045", "1 point 0 4 point 10 point 19045"),
        ("on 12.05.2024, 3.14", "on 12.05.2024, 3.14"),
    ],
    numerals.read_release: [
        ("python3.11", "python 3 point 11"),
        ("Version 3.10, Ubuntu 22.04", "Version 3 point 10, Ubuntu 22 point 0 4"),
        ("v2.0", "v 2 point 0"),
        ("USD5.50, about 3.11, $3.11", "USD5.50, about 3.11, $3.11"),
    ],
    numerals.read_clock: [("9.30 pm, 9.05 a.m.", "9:30 pm, 9:05 a.m."), ("9.75 pm, 9.30 per", "9.75 pm, 9.30 per")],
    numerals.read_last_zero: [
        ("Web 2.0.", "Web 2 point 0."),
        ("3.50 kg", "3 point 5 0 kg"),
        ("$2.50, 2.50 euros, 2.50€, 2.05, USD 1.50, 1.0.0", "$2.50, 2.50 euros, 2.50€, 2.05, USD 1.50, 1.0.0"),
    ],
    numerals.read_scientific: [
        ("1e-5", "1 times 10 to the minus 5"),
        ("2.5E10.", "2.5 times 10 to the 10."),
        ("7e, e5, a1e5, 1e5f", "7e, e5, a1e5, 1e5f"),
    ],
    numerals.read_always: [
        ("open 24/7.", "open twenty-four seven."),
        ("24/7/365", "twenty-four seven three sixty-five"),
        ("24/7/2020 and 124/7", "24/7/2020 and 124/7"),
    ],
    numerals.read_decimal_comma: [
        ("1,5 kg", "1.5 kg"),
        ("1,5 million, 12,5%", "1.5 million, 12.5%"),
        ("€1,50", "€1.50"),
        ("1,500 kg and pages 1,5", "1,500 kg and pages 1,5"),
    ],
    numerals.read_comma_list: [
        ("1,2,3 and (3,4)", "1, 2, 3 and (3, 4)"),
        ("1,00,000", "100000"),
        ("1,234,567.89", "1,234,567.89"),
    ],
    numerals.read_leading_zero: [
        ("Agent 007.", "Agent 0 0 7."),
        ("02139", "0 2 1 3 9"),
        ("0.05, 05, 1.007, 09:05, 2024-005, 0,000", "0.05, 05, 1.007, 09:05, 2024-005, 0,000"),
    ],
    normalize.read_height: [
        ("He is 6'2\" tall", "He is 6 foot 2 tall"),
        ("6’2” or 5'10.", "6 foot 2 or 5 foot 10."),
        ("class of '10, '5' 10 times, 5'", "class of '10, '5' 10 times, 5'"),
    ],
    normalize.read_feet_inches: [
        ("6ft 2in tall", "6 feet 2 inches tall"),
        ("1 ft. 1 in. of snow", "1 foot 1 inch of snow"),
        ("6 ft in 2 days", "6 ft in 2 days"),
    ],
    normalize.read_money: [
        ("$3bn, £2.5mn, €1,000 tn, $2T", "$3 billion, £2.5 million, €1,000 trillion, $2 trillion"),
        ("3bn people", "3 billion people"),
        ("$3 to, £2m, €5k, 2 tn", "$3 to, £2m, €5k, 2 tn"),
    ],
    normalize.read_unit: [
        ("5 tbsp. of oil, 1 tsp of salt", "5 tablespoons of oil, 1 teaspoon of salt"),
        ("1/2 tsp, ½ tsp, 1 1/2 tbsp", "1/2 teaspoon, ½ teaspoon, 1 1/2 tablespoons"),
        ("2 Tbsp.", "2 tablespoons."),
        ("10 m, 5g, 2 L", "10 meters, 5 grams, 2 liters"),
        ("10m, 5G, $5 m, 2 l/s, g", "10m, 5G, $5 m, 2 l/s, g"),
    ],
    normalize.read_sharp: [("C# and F#.", "C sharp and F sharp."), ("#1, C#5, X#", "#1, C#5, X#")],
    normalize.read_street: [
        ("12 Elm Dr. and back", "12 Elm Drive and back"),
        ("on Elm Dr. The dog", "on Elm Drive. The dog"),
        ("on Elm St. The dog", "on Elm Street. The dog"),
        ("on Elm Dr.", "on Elm Drive."),
        ("Elm Dr, Springfield", "Elm Drive, Springfield"),
        ("Hello Dr. Smith. Elm Dr. Smith", "Hello Dr. Smith. Elm Dr. Smith"),
        ("Thanks Dr. I see. In East St. Louis", "Thanks Dr. I see. In East St. Louis"),
    ],
}

READINGS = [
    ("Write to john.doe@example.com now.", "Write to John dot doe at example dot com now."),
    ("www.example.com/path", "w w w dot example dot com slash path"),
    ("version 2.0.1", "version two point zero point one"),
    ("192.168.0.1", "one ninety two dot one sixty eight dot zero dot one"),
    ("python3.11", "python three point eleven"),
    ("He is 6'2\" tall.", "He is six foot two tall."),
    ("6ft 2in", "six feet two inches"),
    ("It cost $3bn.", "It cost three billion dollars."),
    ("5 tbsp", "five tablespoons"),
    ("1e-5", "one times ten to the minus five"),
    ("24/7", "twenty-four seven"),
    ("C#", "C sharp"),
    ("(555) 123-4567", "five five five, one two three, four five six seven"),
    ("007", "zero zero seven"),
    ("12 Elm Dr. and back.", "twelve Elm Drive and back."),
    ("C++", "C plus plus"),
]


@pytest.mark.parametrize(
    ("rule", "text", "read"),
    [(rule, *example) for rule, examples in EXAMPLES.items() for example in examples],
)
def test_rule(rule: Callable[[str], str], text: str, read: str) -> None:
    assert rule(text) == read


def test_every_rule_has_examples() -> None:
    assert set(EXAMPLES) == set(normalize.RULES)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Plain words, and 1,234.56 of them - at 10:30 p.m.",
        "On the 3rd of March 2024, 1,250 people paid $9.99 each.",
        "16 GB at 3.5GHz, 60 mph, 100 km/h, 5 kg, 20°C, C++, 50%, 1990s, 10-20, #1, 3x",
        "Dr. Smith of 5th Ave. met St. Mary and/or J.R.R. Tolkien on 2024-01-15 at 09:05.",
    ],
)
def test_what_the_package_reads_well_is_left_alone(text: str) -> None:
    assert normalize.normalize(text) == text


@pytest.fixture(scope="module", name="rules")
def _rules() -> Pronouncer:
    return load_pronouncer()


@pytest.mark.model
@pytest.mark.parametrize(("text", "words"), READINGS)
def test_the_package_then_says(rules: Pronouncer, text: str, words: str) -> None:
    assert rules(normalize.normalize(text)).replace("ˌ", "") == rules(words).replace("ˌ", "")
