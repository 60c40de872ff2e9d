"""The people of the demo. Made up, as is everything that they do; their domain is reserved."""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass

#: Reserved for examples (RFC 2606 section 3): mail to it goes nowhere, should it ever get out.
DOMAIN = "example.com"


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody who works with the tracker; `login` is the name that the tracker itself writes."""

    id: str
    login: str
    display_name: str
    email: str | None
    time_zone: str
    locale: str
    is_active: bool = True


_KNOWN = (
    ("ana", "Ana Souza", "America/Sao_Paulo", "pt-BR"),
    ("bjorn", "Björn Ågren", "Europe/Stockholm", "sv"),
    ("chloe", "Chloé Dubois", "Europe/Paris", "fr"),
    ("dmitri", "Дмитрий Волков", "Asia/Yekaterinburg", "ru"),
    ("efua", "Efua Mensah", "Africa/Accra", "en-GH"),
    ("fatima", "فاطمة السيد", "Africa/Cairo", "ar"),
    ("giorgos", "Giorgos Pappas", "Europe/Athens", "el"),
    ("hana", "佐藤 花", "Asia/Tokyo", "ja"),
    ("ivy", "Ivy “The Fixer” O'Neil, QA", "America/New_York", "en-US"),
    ("jamal", "Jamal <Support>", "America/Chicago", "en-US"),
    ("kiri", "Kiri Tāne", "Pacific/Auckland", "mi"),
    ("lena", "Lena Groß", "Europe/Berlin", "de"),
    ("mei", "李梅", "Asia/Shanghai", "zh-CN"),
    ("nikhil", "Nikhil Rao", "Asia/Kolkata", "en-IN"),
)


def make_people(chance: random.Random) -> list[Person]:
    """Everybody; among them one without an address and one who has left."""
    people = [
        Person(make_id(chance), login, name, f"{login}@{DOMAIN}", time_zone, locale)
        for login, name, time_zone, locale in _KNOWN
    ]
    people.append(Person(make_id(chance), "otto", "Otto (no address)", None, "UTC", "en"))
    people.append(
        Person(make_id(chance), "pia", "Pia Moretti", f"pia@{DOMAIN}", "Europe/Rome", "it", False)
    )
    return people


def make_id(chance: random.Random) -> str:
    """A random UUID that the seed decides."""
    return str(uuid.UUID(int=chance.getrandbits(128), version=4))
