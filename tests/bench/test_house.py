"""What bench/house.py counts, on small invented trees."""

import textwrap

import pytest


@pytest.fixture
def house(script):
    return script("house")


@pytest.fixture
def imports(script):
    return script("imports")


def functions(script, language, text):
    found = script("braces").functions(textwrap.dedent(text).strip("\n"), language)
    return [tuple(each) for each in sorted(found, key=lambda each: each.line)]


# ---- functions by their braces

JAVA = [
    ("class A {\n  void f(int a) {\n    a++;\n  }\n}", [("f", 2, 3)]),
    ("class A {\n  A() {}\n}", [("A", 2, 1)]),
    ("record R(int a) {\n  R {\n    check(a);\n  }\n}", [("R", 2, 3)]),
    ("class A {\n  static {\n    go();\n  }\n}", [("<init>", 2, 3)]),
    ('class A {\n  @Override\n  @X({"a", "b"})\n  int f() {\n    return 1;\n  }\n}', [("f", 4, 3)]),
    (
        "class A {\n  <T> List<T> f(\n      int a,\n      int b)\n      throws X, Y {\n  }\n}",
        [("f", 2, 5)],
    ),
    ("class A {\n  int[] a = {1, 2};\n  Runnable r = () -> {\n    go();\n  };\n}", []),
    ("class A {\n  R r = new R() {\n    public void run() {\n    }\n  };\n}", [("run", 3, 2)]),
    (
        "class A {\n  void f() {\n    go(new R() {\n      void g() {\n      }\n    });\n"
        "    if (a) {\n    }\n  }\n}",
        [("f", 2, 8), ("g", 4, 2)],
    ),
    (
        "class A {\n  void f() {\n    for (;;) {\n    }\n    record T(int b) {}\n  }\n}",
        [("f", 2, 5)],
    ),
    ("interface I {\n  void f();\n  default int g() {\n    return 1;\n  }\n}", [("g", 3, 3)]),
    ("enum E {\n  A(1),\n  B(2);\n  E(int a) {\n  }\n}", [("E", 4, 2)]),
    (
        "class A {\n  // void no() {\n  String s = \"{\";\n  char c = '{';\n  void f() {\n  }\n}",
        [("f", 5, 2)],
    ),
    (
        'class A {\n  String s = """\n    { " {\n    """;\n  /* { */\n  void f() {\n  }\n}',
        [("f", 6, 2)],
    ),
    (
        "class A {\n  class B {\n    void f() {\n    }\n  }\n  void g() {\n  }\n}",
        [("f", 3, 2), ("g", 6, 2)],
    ),
]
C = [
    ("int f(void)\n{\n  return 1;\n}", [("f", 1, 4)]),
    ("static int f(int a,\n             int b) {\n  if (a) {\n  }\n}", [("f", 1, 5)]),
    ("struct s {\n  int a;\n};\nint f(void) {\n}", [("f", 4, 2)]),
    ("static const int t[] = {1, 2};\nstatic struct s x = {.a = f(1)};", []),
    ("#define M(a) do { \\\n  g(a); \\\n} while (0)\nvoid f(void) {\n}", [("f", 4, 2)]),
    ("/* f() { */\nvoid f(void) {\n  g(\"}\", '{');\n}", [("f", 2, 3)]),
    ('extern "C" {\nvoid f(void) {\n}\n}', [("f", 2, 2)]),
    ("int f(void);\nint (*g)(int);\ntypedef enum { A } e;", []),
    ('__attribute__((target("x")))\nvoid f(void) {\n}', [("f", 2, 2)]),
    ("struct s *f(struct s *a) {\n}", [("f", 1, 2)]),
    (
        "void f(void) {\n  struct s a = {0};\n  switch (b) {\n  case 1: {\n  }\n  }\n}",
        [("f", 1, 7)],
    ),
]


@pytest.mark.parametrize(("text", "expected"), JAVA)
def test_functions_of_java(script, text, expected):
    assert functions(script, "java", text) == expected


@pytest.mark.parametrize(("text", "expected"), C)
def test_functions_of_c(script, text, expected):
    assert functions(script, "c", text) == expected


@pytest.mark.parametrize("text", ["void f(void) {", "}", "void f(void) { g(; }"])
def test_braces_that_do_not_match_are_an_error_and_no_count(script, text):
    with pytest.raises(script("braces").Unbalanced):
        functions(script, "c", text)


def test_a_python_function_counts_from_its_def_to_its_end(house):
    text = "@decorated\ndef f():\n    def g():\n        return 1\n\n    return g\n\n\nx = 1\n"
    assert house.functions_of("a.py", text) == [("f", 2, 5), ("g", 3, 2)]


# ---- who imports whom


def test_python_imports_are_those_of_modules_of_ours(imports):
    tree = {
        "batching/__init__.py": "",
        "batching/a.py": "import os\nfrom shunter.batching import b\nimport shunter.plugins.c",
        "batching/b.py": "def f():\n    from shunter.plugins.c import thing\n",
        "plugins/c.py": "from shunter.batching import __doc__\n",
    }
    assert imports.python_modules(tree) == {
        "batching/__init__.py": set(),
        "batching/a.py": {"batching/__init__.py", "batching/b.py", "plugins/c.py"},
        "batching/b.py": {"plugins/c.py"},
        "plugins/c.py": {"batching/__init__.py"},
    }


def test_java_packages_import_each_other_by_class_or_as_a_whole(imports):
    tree = {
        "p/a/A.java": "package p.a;\nimport p.b.B;\nimport java.util.List;",
        "p/b/B.java": "package p.b;\nimport static p.c.C.f;\nimport p.b.Other;",
        "p/c/C.java": "package p.c;\nimport p.a.*;",
    }
    graph = imports.java_packages(tree)
    assert graph == {"p.a": {"p.b"}, "p.b": {"p.c"}, "p.c": {"p.a"}}
    [knot] = imports.knots(graph)
    assert imports.circle(graph, knot) == ["p.a", "p.b", "p.c", "p.a"]


def test_a_public_header_may_be_included_by_a_private_one(imports):
    tree = {
        "c/a.c": '#include <stdio.h>\n#include "a.h"\n#include "a_parts.h"',
        "c/a.h": "",
        "c/a_parts.h": '# include "a.h"',
        "c/d/e.c": '#include "b.h"\n#include "../a.h"',
        "b/b.h": "",
    }
    graph = imports.c_files(tree)
    assert graph == {
        "c/a.c": {"c/a.h", "c/a_parts.h"},
        "c/a.h": set(),
        "c/a_parts.h": {"c/a.h"},
        "c/d/e.c": {"b/b.h", "c/a.h"},
        "b/b.h": set(),
    }
    assert imports.knots(graph) == []


def test_headers_that_include_each_other_are_a_circle(imports):
    tree = {
        "c/a.c": '#include "a.h"',
        "c/a.h": '#include "b.h"',
        "c/b.h": '#include "a.h"',
    }
    assert imports.knots(imports.c_files(tree)) == [{"c/a.h", "c/b.h"}]


def test_knots_are_found_apart_and_what_only_leads_to_one_is_in_none(imports):
    graph = {"a": {"b"}, "b": {"a", "c"}, "c": {"d"}, "d": {"e"}, "e": {"c"}, "f": {"a"}}
    assert imports.knots(graph) == [{"a", "b"}, {"c", "d", "e"}]
    assert imports.knots({"a": {"b"}, "b": set()}) == []


def test_floors_are_the_longest_chain_and_all_of_a_knot(imports):
    graph = {"a": {"b", "c"}, "b": {"c"}, "c": set(), "d": {"c"}}
    assert imports.longest_chain(graph) == ["a", "b", "c"]
    graph["c"] = {"b"}
    assert imports.longest_chain(graph) == ["a", "b", "c"]
    assert imports.longest_chain({}) == []


# ---- the whole


def lines(count):
    return "x = 1\n" * count


def method(count):
    return "class A {\nvoid f() {\n" + "go();\n" * (count - 2) + "}\n}\n"


TREE = {
    "README.md": lines(900),
    "bench/long.py": lines(900),
    "tests/long.py": lines(900),
    "batching/just.py": lines(300),
    "batching/long.py": lines(301),
    "batching/emitted.py": "# Emitted by python -m shunter.batching.emit. Do not edit.\n"
    + lines(900),
    "plugins/A.java": method(60),
    "plugins/B.java": method(61),
    "plugins/a.py": "from shunter.plugins import b\n",
    "plugins/b.py": "from shunter.plugins import a\n",
    "nic_frontend/c/x.c": "int f(void) {\n}\n",
    "nic_frontend/c/x.h": "int f(void);\n",
    **{f"handlers/f{n}.py": "" for n in range(15)},
    "handlers/__init__.py": "",
    **{f"allocator/f{n}.py": "" for n in range(15)},
    "allocator/notes.txt": "",
}


def test_every_rule_finds_what_breaks_it_and_nothing_else(house):
    assert [tuple(each[:3]) for each in house.offenders(TREE)] == [
        ("files_over_300_lines", "batching/long.py", 301),
        ("functions_over_60_lines", "plugins/B.java:f", 61),
        ("folders_over_15_files", "allocator", 16),
        ("import_circles", "plugins/a.py -> plugins/b.py -> plugins/a.py", 2),
    ]


def test_product_lines_are_those_of_the_rooms_by_language(house):
    rows, headline = house.result(TREE)
    found = {(r["room"], r["language"]): r["lines"] for r in rows if r["about"] == "lines"}
    assert found == {
        ("allocator", "Python"): 0,
        ("batching", "Python"): 601,
        ("handlers", "Python"): 0,
        ("nic_frontend", "C"): 3,
        ("plugins", "Java"): 62 + 63,
        ("plugins", "Python"): 2,
    }
    assert headline["product_lines"] == sum(found.values())


def test_an_exception_is_named_and_still_counted(house):
    tree = {
        **TREE,
        "CONTRIBUTING.md": "# How\n- `plugins/B.java:f`: not here\n\n## Exceptions:\n\n"
        "- `batching/long.py`: one definition\n* `gone.py`, was long\n"
        "\n## Next\n- `allocator`: no\n",
    }
    rows, headline = house.result(tree)
    named = {r["name"]: r["exception"] for r in rows if r["about"] == "offender" and r["exception"]}
    assert named == {"batching/long.py": "one definition"}
    assert [r["name"] for r in rows if r["about"] == "exception of nothing"] == ["gone.py"]
    assert (headline["files_over_300_lines"], headline["not_excepted"]) == (1, 3)


def test_floors_are_counted_in_each_room(house):
    rows, _ = house.result(TREE)
    floors = {(r["room"], r["of"]): r["floors"] for r in rows if r["about"] == "floors"}
    assert floors["plugins", "Python modules"] == 2
    assert floors["nic_frontend", "C files"] == 1


def test_a_commit_and_the_working_tree_are_read_by_what_git_tracks(house, repository, capsys):
    (repository / "batching").mkdir()
    (repository / "batching/a.py").write_text(lines(2))
    repository.commit()
    (repository / "batching/a.py").write_text(lines(5))
    (repository / "batching/untracked.py").write_text(lines(9))
    sides = {
        "before": house.result(house.commit_tree(repository.path, "HEAD")),
        "now": house.result(house.working_tree(repository.path)),
    }
    assert [headline["product_lines"] for _, headline in sides.values()] == [2, 5]
    house.show(sides, worst=3)
    assert "product_lines" in capsys.readouterr().out
