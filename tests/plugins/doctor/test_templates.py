"""Files to begin with mean what is meant without them."""

import re
import tomllib

from shunter.plugins.control import settings
from shunter.plugins.doctor.templates import default_of, prose, sections, settings_text


def test_as_written_it_changes_nothing():
    assert settings.parse(tomllib.loads(settings_text())) == settings.Settings()


def uncommented():
    """Every default, said."""
    lines = [line for line in settings_text().splitlines() if not re.search(r"=\s+#", line)]
    return "\n".join(re.sub(r"^#(?! )", "", line) for line in lines)


def test_every_default_may_be_said():
    document = tomllib.loads(uncommented())
    model = document.pop("models")["resnet"]
    assert settings.parse(document) == settings.Settings()
    assert model == {}


def test_every_key_is_there_once_with_its_meaning():
    lines = settings_text().splitlines()
    for name, _, keys in sections():
        heads = [i for i, line in enumerate(lines) if re.match(rf"#?\[{name}[\].]", line)]
        assert len(heads) == 1, name
        below = lines[heads[0] + 1 :]
        own = below[: next(i for i, line in enumerate([*below, ""]) if not line)]
        named = [found[1] for line in own if (found := re.match(r"#(\w+) =", line))]
        assert named == list(keys)
        assert own[0].startswith("# ")
    assert all(len(line) <= 100 for line in lines)


def test_defaults_and_prose():
    of = {f"{name}.{key}": field for name, _, keys in sections() for key, field in keys.items()}
    assert default_of(of["controller.interval_ms"]) == "100"
    assert default_of(of["batching.mix_classes"]) == "false"
    assert default_of(of["batching.max_wait_ms"]) is None
    assert default_of(of["classes.allow_strict"]) == '"all"'
    assert prose("a\n  b\n\nc ``d`` :func:`x.y.find`") == "a b\n\nc `d` `find`"
