"""The formats that are enforced, as patterns. The standard lets us ignore all others.

Where a standard allows what common readers (Python's, pydantic's) cannot read, the patterns allow less.
"""

from __future__ import annotations

_DAYS_31 = r"(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])"
_DAYS_30 = r"(?:0[469]|11)-(?:0[1-9]|[12]\d|30)"
_FEBRUARY = r"02-(?:0[1-9]|1\d|2[0-8])"
_YEAR = r"(?:[1-9]\d{3}|0[1-9]\d\d|00[1-9]\d|000[1-9])"
"""RFC 3339 has a year 0000; Python's dates have none."""
_FOURTH = r"(?:0[48]|[2468][048]|[13579][26])"
_LEAP_YEAR = rf"(?:\d\d{_FOURTH}|{_FOURTH}00)"
_DATE = rf"(?:{_YEAR}-(?:{_DAYS_31}|{_DAYS_30}|{_FEBRUARY})|{_LEAP_YEAR}-02-29)"
_HOUR, _SIXTY = r"(?:[01]\d|2[0-3])", r"[0-5]\d"
_TIME = rf"{_HOUR}:{_SIXTY}:{_SIXTY}(?:\.\d{{1,9}})?(?:Z|[+-]{_HOUR}:{_SIXTY})"
"""Without leap seconds and parts of nanoseconds, with capital letters: RFC 3339 asks writers for those."""

_CLOCK = r"T(?:\d{1,6}H(?:\d{1,6}M(?:\d{1,6}S)?)?|\d{1,7}M(?:\d{1,7}S)?|\d{1,9}S)"
"""Less than 2**32 seconds in all."""
_CALENDAR = r"(?:\d{1,6}Y(?:\d{1,7}M(?:\d{1,8}D)?)?|\d{1,7}M(?:\d{1,8}D)?|\d{1,8}D)"
"""Less than a billion days in all: Python's durations have no more."""
_DURATION = rf"P(?:{_CALENDAR}(?:{_CLOCK})?|{_CLOCK}|\d{{1,8}}W)"


def _label(longest: int) -> str:
    return rf"[A-Za-z0-9](?:[A-Za-z0-9-]{{0,{longest - 2}}}[A-Za-z0-9])?"


def _labels(longest: int, most: int) -> str:
    return rf"{_label(longest)}(?:\.{_label(longest)}){{0,{most - 1}}}"


_HOSTNAME = rf"(?:{_labels(63, 3)}|{_labels(30, 8)}|{_labels(14, 16)})"
"""At most 253 characters: few labels of any length, or more labels that are shorter."""

_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,20}"
_EMAIL = rf"{_ATOM}(?:\.{_ATOM}){{0,2}}@{_HOSTNAME}"

_OCTET = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_IPV4 = rf"{_OCTET}(?:\.{_OCTET}){{3}}"
_H16 = r"[0-9A-Fa-f]{1,4}"
_LS32 = rf"(?:{_H16}:{_H16}|{_IPV4})"
_IPV6 = (
    "(?:"
    + "|".join(
        [
            rf"(?:{_H16}:){{6}}{_LS32}",
            rf"::(?:{_H16}:){{5}}{_LS32}",
            rf"(?:{_H16})?::(?:{_H16}:){{4}}{_LS32}",
            rf"(?:(?:{_H16}:){{0,1}}{_H16})?::(?:{_H16}:){{3}}{_LS32}",
            rf"(?:(?:{_H16}:){{0,2}}{_H16})?::(?:{_H16}:){{2}}{_LS32}",
            rf"(?:(?:{_H16}:){{0,3}}{_H16})?::{_H16}:{_LS32}",
            rf"(?:(?:{_H16}:){{0,4}}{_H16})?::{_LS32}",
            rf"(?:(?:{_H16}:){{0,5}}{_H16})?::{_H16}",
            rf"(?:(?:{_H16}:){{0,6}}{_H16})?::",
        ]
    )
    + ")"
)

_PERCENT = r"%[0-9A-Fa-f]{2}"
_UNRESERVED = r"A-Za-z0-9._~!$&'()*+,;=\-"
_PCHAR = rf"(?:[{_UNRESERVED}:@]|{_PERCENT})"
_HOST = rf"(?:\[{_IPV6}\]|(?:[{_UNRESERVED}]|{_PERCENT})*)"
_PORT = r"(?:\d{0,4}|[1-5]\d{4}|6[0-4]\d{3}|65[0-4]\d\d|655[0-2]\d|6553[0-5])"
_AUTHORITY = rf"(?:(?:[{_UNRESERVED}:]|{_PERCENT})*@)?{_HOST}(?::{_PORT})?"
_PATH = rf"(?:[{_UNRESERVED}:@/]|{_PERCENT})*"
"""Any number of segments. The pattern is flat, so that a limit on the length is easily kept."""
_ABSOLUTE = rf"/(?:{_PCHAR}{_PATH})?"
_MORE = rf"(?:[{_UNRESERVED}:@/?]|{_PERCENT})*"
_TAIL = rf"(?:\?{_MORE})?(?:#{_MORE})?"
_URI = rf"[A-Za-z][A-Za-z0-9+.-]*:(?://{_AUTHORITY}(?:/{_PATH})?|{_ABSOLUTE}|{_PCHAR}{_PATH}|){_TAIL}"
_NO_COLON = rf"(?:[{_UNRESERVED}@]|{_PERCENT})+"
_RELATIVE = rf"(?://{_AUTHORITY}(?:/{_PATH})?|{_ABSOLUTE}|{_NO_COLON}(?:/{_PATH})?|){_TAIL}"

_LIMITED_TAIL = rf"(?:[/?]{_MORE})?(?:#{_MORE})?"
_LIMITED_URI = (
    rf"[A-Za-z][A-Za-z0-9+.-]{{0,15}}:"
    rf"(?://[{_UNRESERVED}]*(?::\d{{0,4}})?{_LIMITED_TAIL}|/?{_PCHAR}{_MORE}(?:#{_MORE})?)"
)
_LIMITED_RELATIVE = rf"(?:/{_PCHAR}{_MORE}|[{_UNRESERVED}@]+(?:[/?]{_MORE})?)(?:#{_MORE})?"

_HEX = "[0-9A-Fa-f]"

_TEMPLATE_CHARACTER = r"[!#$&(-;=?-\[\]_a-z~\xa0-\ud7ff\ue000-\ufdcf\ufdf0-\uffef]"
_VARIABLE = rf"(?:\w|{_PERCENT})(?:\.?(?:\w|{_PERCENT}))*(?::[1-9]\d{{0,3}}|\*)?"
_EXPRESSION = rf"\{{[+#./;?&]?{_VARIABLE}(?:,{_VARIABLE})*\}}"
"""RFC 6570 reserves more operators, which no reader knows what to do with."""
_URI_TEMPLATE = rf"(?:{_TEMPLATE_CHARACTER}|{_PERCENT}|{_EXPRESSION})*"

FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": rf"{_DATE}T{_TIME}",
    "duration": _DURATION,
    "email": _EMAIL,
    "hostname": _HOSTNAME,
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "uri": _URI,
    "uri-reference": rf"(?:{_URI}|{_RELATIVE})",
    "uri-template": _URI_TEMPLATE,
    "uuid": rf"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}",
    "json-pointer": r"(?:/(?:[^~/]|~[01])*)*",
}
"""Patterns of whole strings, by the format's name."""

LIMITED = {
    "email": rf"{_ATOM}(?:\.{_ATOM})?@{_labels(20, 5)}",
    "uri": _LIMITED_URI,
    "uri-reference": rf"(?:{_LIMITED_URI}|{_LIMITED_RELATIVE})",
}
"""Patterns that replace a format where the length is limited.
They match less, and have fewer variable parts."""
