"""Postal addresses, and ordinary text that is none."""

import pytest
from agl_privacy._postal import postal_addresses


def found(text: str) -> list[str]:
    return [text[start:end] for start, end in postal_addresses(text)]


@pytest.mark.parametrize(
    "address",
    [
        "123 Main Street, Springfield, IL 62704",
        "123 Main St., Apt 4B, Springfield, IL 62704-1234",
        "123 MAIN ST\nSPRINGFIELD, IL 62704",
        "123 Main street,Springfield,IL,62704",
        "1600 Pennsylvania Avenue NW, Washington, DC 20500",
        "350 5th Ave, New York, NY 10118",
        "1600 Broadway, New York, NY 10019",
        "742 N. Evergreen Terrace Springfield OR 97403",
        "1 Infinite Loop\r\nCupertino, CA 95014",
        "10 Downing Street, London SW1A 2AA",
        "221B Baker Street, London, NW1 6XE",
        "Flat 3, 12 High Street, Little Whinging, Surrey, GU15 3AB",
        "12 St John's Road\nLondon\nN1 2EF",
        "Musterstraße 12a, 10115 Berlin",
        "Hauptstr. 5\\n80331 München",
        "Am Alten Markt 3, 14467 Potsdam",
        "Berliner Straße 10-12, 60311 Frankfurt am Main",
        "Unter den Linden 77, D-10117 Berlin",
        "Karl-Marx-Allee 1 | 10178 Berlin",
        "12 rue de la Paix, 75002 Paris",
        "12 bis, avenue des Champs-Élysées 75008 Paris",
        "5 place de l'Hôtel de Ville\n69001 Lyon",
        "8 rue du 8 Mai 1945, 92000 Nanterre",
        "14 Rue Émile Zola - 13100 Aix-en-Provence",
    ],
)
def test_addresses_of_four_countries_are_found(address: str) -> None:
    assert found(address) == [address]
    assert found(f"He lives at {address} today (since 2019).") == [address]
    assert found(f'{{"to": "{address}"}}') == [address]


@pytest.mark.parametrize(
    "text",
    [
        "It costs 12,500 Euro or $10115.00, that is 10115 Dollars for 12 Items.",
        "Der Platz 12, 50000 Euro; am Montag 12, 20000 Euro",
        "On March 12, 20000 people came to Berlin Street, and 2026-11-30 10115 left.",
        "The street is 5 km long, 12345 Berlin has it.",
        "Route 66 goes from Chicago, IL 60601",
        "Room 12, 10115 Berlin",
        "SW1A 2AA is the postcode of the street",
        'zip = "NY 10001"; code = "GU15 3AB"',
        "In 2024 the Main Street index, NY 10001",
        "123 Main Street",
        "12 rue, 75002",
        "12 Angry Men, Hollywood, CA",
        "step 12 of Way, CA 90210",
        "Python 3 Way AB1 2CD",
        "for i in range(10115): Foo(12, Street)",
        "def street(n): return 12345 if Place else Berlin",
        "File main.py, line 12345, in Road",
        "loss 0.12345 Step 12345 Reward 1.0",
        "Take 2 Aspirin. Park Road is closed.",
        "flight BA12 3AB, gate 12, 12345 Miles",
        "<td>12</td><td>Street</td><td>62704</td>",
        "id 6f2a1b12345 Token SW1A2AA",
        "",
    ],
)
def test_ordinary_text_holds_none(text: str) -> None:
    assert found(text) == []


def test_several_stand_in_one_text() -> None:
    text = (
        "From Testweg 1, 10115 Berlin to 12 rue de la Paix, 75002 Paris,\n"
        "then 10 Downing Street, London SW1A 2AA and 123 Main St, Boston, MA 02110."
    )
    assert sorted(found(text)) == [
        "10 Downing Street, London SW1A 2AA",
        "12 rue de la Paix, 75002 Paris",
        "123 Main St, Boston, MA 02110",
        "Testweg 1, 10115 Berlin",
    ]
