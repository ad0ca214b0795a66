"""Who may open which sessions: keys, each with an id and rights.

The file of keys may change while they are in use; a file that cannot be used changes nothing.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import logging
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from shunter.batching.forming.spelling import hint
from shunter.nic_frontend.wire.hello import DEFAULT_KEY, LONGEST

LOGGER = logging.getLogger("shunter.nic")
LEAST_BYTES = 32
"""Of a secret."""
CLASSES = ("strict", "best_effort")
_FIELDS = ("id", "secret", "secret_file", "models", "classes", "not_after")


class KeyFileError(ValueError):
    """A file of keys cannot be used; the message says where and why."""


@dataclass(frozen=True)
class AccessKey:
    """What somebody who has this secret may do."""

    id: str
    secret: bytes
    models: tuple[str, ...] = ("*",)
    """Names, or patterns of names."""
    strict: bool = True
    not_after: float | None = None
    """Seconds of the wall clock."""

    def allows(self, model: str) -> bool:
        """Whether it is for this model."""
        return any(fnmatchcase(model, each) for each in self.models)

    def is_valid(self, wall: float) -> bool:
        """Whether it is still good."""
        return self.not_after is None or wall <= self.not_after


class KeyRing:
    """The keys of a front end. Each has a number, and what is changed of it makes it another."""

    def __init__(self, path: Path | None, single: bytes | None = None) -> None:
        """``single`` is the secret of a key with all rights. Raises KeyFileError."""
        self._path = path
        self._single = [AccessKey(DEFAULT_KEY, single)] if single else []
        self._numbers: dict[AccessKey, int] = {}
        self._next = 1
        self._ended: set[int] = set()
        """Numbers of keys whose time is over, as :meth:`refresh` has said."""
        self._seen: object = None
        self._take(self._read())

    def __bool__(self) -> bool:
        """Whether sessions need a key at all."""
        return bool(self._single) or self._path is not None

    def find(self, key_id: str, wall: float) -> tuple[int, AccessKey] | None:
        """The number and the key, None when there is no such key that is good now."""
        for key, number in self._numbers.items():
            if key.id == key_id:
                return (number, key) if key.is_valid(wall) else None
        return None

    def refresh(self, wall: float, *, force: bool = False) -> list[int]:
        """Read the file again if it has changed; the numbers of keys that are good no more."""
        late = {number for key, number in self._numbers.items() if not key.is_valid(wall)}
        gone, self._ended = sorted(late - self._ended), late
        if force or self._stamp() != self._seen:
            before = dict(self._numbers)
            try:
                self._take(self._read())
                LOGGER.info("%s: %d keys", self._path, len(self._numbers))
            except KeyFileError as error:
                LOGGER.warning("the keys stay as they were: %s", error)
            gone += [n for key, n in before.items() if key not in self._numbers]
        return gone

    def _take(self, keys: list[AccessKey]) -> None:
        numbers = {}
        for key in keys:
            if (number := self._numbers.get(key)) is None:
                number, self._next = self._next, self._next + 1
            numbers[key] = number
        self._numbers = numbers

    def _read(self) -> list[AccessKey]:
        if self._path is None:
            return self._single
        self._seen = self._stamp()
        return _checked(self._path, [*self._single, *read_keys(self._path)])

    def _stamp(self) -> object:
        try:
            found = self._path.stat() if self._path is not None else None
        except OSError:
            return "missing"
        return found and (found.st_mtime_ns, found.st_size, found.st_ino)


def _checked(path: Path, keys: list[AccessKey]) -> list[AccessKey]:
    ids = [key.id for key in keys]
    if twice := {each for each in ids if ids.count(each) > 1}:
        raise KeyFileError(f"{path}: there are several keys {', '.join(map(repr, twice))}")
    return keys


def read_keys(path: Path) -> list[AccessKey]:
    """The keys of a file: tables ``[[key]]``. Raises KeyFileError."""
    try:
        document = tomllib.loads(_private(path).decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise KeyFileError(f"{path}: {error}") from error
    tables = document.pop("key", [])
    if document or not isinstance(tables, list):
        raise KeyFileError(f"{path}: {', '.join(document) or 'key'}; allowed: [[key]]")
    return [_key(path, table) for table in tables]


def _key(path: Path, table: Any) -> AccessKey:
    if not isinstance(table, Mapping):
        raise KeyFileError(f"{path}: key = {table!r}; allowed: [[key]]")
    if unknown := table.keys() - set(_FIELDS):
        word = min(unknown)
        raise KeyFileError(
            f"{path}: {word} is unknown; allowed: {', '.join(_FIELDS)}{hint(word, _FIELDS)}"
        )
    name = table.get("id")
    if not isinstance(name, str) or not 0 < len(name.encode()) <= LONGEST["key_id"]:
        raise KeyFileError(
            f"{path}: id = {name!r}; allowed: a text of 1 to {LONGEST['key_id']} bytes"
        )
    where = f"{path}: key {name!r}"
    classes = _names(where, "classes", table.get("classes", list(CLASSES)))
    if not classes or not set(classes) <= set(CLASSES):
        raise KeyFileError(f"{where}: classes = {list(classes)}; allowed: {', '.join(CLASSES)}")
    return AccessKey(
        name,
        _secret(where, path, table),
        _names(where, "models", table.get("models", ["*"])),
        "strict" in classes,
        _time(where, table.get("not_after")),
    )


def _names(where: str, field: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise KeyFileError(f"{where}: {field} = {value!r}; allowed: a list of names")
    return tuple(value)


def _time(where: str, value: Any) -> float | None:
    if value is None:
        return None
    if not isinstance(value, datetime.datetime) or value.tzinfo is None:
        raise KeyFileError(
            f"{where}: not_after = {value}; allowed: a time with its zone, 2030-01-31T12:00:00Z"
        )
    return value.timestamp()


def _secret(where: str, path: Path, table: Mapping[str, Any]) -> bytes:
    if ("secret" in table) == ("secret_file" in table):
        raise KeyFileError(f"{where}: it needs secret or secret_file, one of them")
    given = table.get("secret", table.get("secret_file"))
    if not isinstance(given, str):
        raise KeyFileError(f"{where}: its secret is no text")
    if "secret_file" in table:
        secret = _private(path.parent / given)
    else:
        try:
            secret = base64.b64decode(given, validate=True)
        except binascii.Error as error:
            raise KeyFileError(f"{where}: its secret is not base64") from error
    if len(secret) < LEAST_BYTES:
        raise KeyFileError(f"{where}: {len(secret)} bytes; a secret has at least {LEAST_BYTES}")
    return secret


def _private(path: Path) -> bytes:
    """The bytes of a file that nobody else may read. Raises KeyFileError."""
    try:
        with path.open("rb") as file:
            if path.stat().st_mode & 0o077:
                raise KeyFileError(f"{path}: others can read it; chmod 600 it")
            return file.read()
    except OSError as error:
        raise KeyFileError(f"{path} cannot be read: {error.strerror}") from error
