import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.batching.forming.classes import (
    RequestClass,
    Terms,
    parse_class,
    parse_deadline_ns,
    parse_terms,
)
from shunter.batching.page.layout import CLASSES


def check(parse, text, value, message):
    if message is None:
        assert parse(text) == value
    else:
        with pytest.raises(ValueError) as caught:
            parse(text)
        assert str(caught.value) == message


def test_classes_are_read_as_the_golden_table_says(golden):
    for row in golden("classes.json")["class"]["rows"]:
        check(parse_class, *row)


def test_deadlines_are_read_as_the_golden_table_says(golden):
    for row in golden("classes.json")["deadline"]["rows"]:
        check(parse_deadline_ns, *row)


def test_the_index_of_a_class_is_that_of_the_page():
    assert [c.name.lower() for c in RequestClass] == list(CLASSES)


def test_a_bad_class_names_key_value_and_what_is_allowed():
    with pytest.raises(ValueError) as caught:
        parse_class("foo")
    assert str(caught.value) == (
        'x-shunter-class: "foo" is not a class; allowed: strict, best-effort'
    )


def test_a_bad_deadline_names_key_value_and_what_is_allowed():
    with pytest.raises(ValueError) as caught:
        parse_deadline_ns("foo")
    assert str(caught.value) == (
        'x-shunter-deadline-ms: "foo" is not a deadline; '
        "allowed: a number of milliseconds above 0 and at most 86400000"
    )


def test_terms_that_are_not_stated_are_none():
    assert parse_terms([("accept", "*/*"), ("x-shunter", "strict")]) == Terms(None, None)


def test_header_names_are_compared_without_case():
    headers = [("X-Shunter-Class", "best-effort"), ("x-shunter-DEADLINE-ms", "1.5")]
    assert parse_terms(headers) == Terms(RequestClass.BEST_EFFORT, 1_500_000)


@pytest.mark.parametrize(("text", "stated"), [("true", True), (" False\t", False), ("TRUE", True)])
def test_a_request_may_say_whether_it_may_run_twice(text, stated):
    assert parse_terms([("X-Shunter-Idempotent", text)]) == Terms(None, None, stated)


@pytest.mark.parametrize("text", ["", "1", "yes", "tru\u00e9"])
def test_other_words_for_that_are_errors(text):
    with pytest.raises(ValueError, match=r"x-shunter-idempotent: .*; allowed: true, false"):
        parse_terms([("x-shunter-idempotent", text)])


def test_of_a_repeated_header_the_last_wins_even_over_a_bad_one():
    headers = [("x-shunter-class", "foo"), ("X-SHUNTER-CLASS", "strict")]
    assert parse_terms(headers).request_class is RequestClass.STRICT


@pytest.mark.parametrize("key", ["x-shunter-clas", "X-Shunter-", "x-shunter-priority"])
def test_an_unknown_key_of_ours_is_an_error_that_names_the_allowed_ones(key):
    told = f'"{key}" is unknown; allowed: x-shunter-class, x-.*, x-shunter-strict-key'
    with pytest.raises(ValueError, match=told):
        parse_terms([("x-shunter-class", "strict"), (key, "strict")])


def test_the_secret_of_the_operator_is_no_term_and_no_error():
    headers = [("x-shunter-class", "strict"), ("X-Shunter-Strict-Key", "secret")]
    assert parse_terms(headers) == parse_terms(headers[:1])


def test_a_bad_value_is_an_error_of_the_whole_request():
    with pytest.raises(ValueError, match="x-shunter-deadline-ms"):
        parse_terms([("x-shunter-class", "strict"), ("x-shunter-deadline-ms", "0")])


@given(st.text())
def test_any_text_is_a_class_or_a_value_error(text):
    try:
        assert parse_class(text) in RequestClass
    except ValueError as error:
        assert text in str(error)


@given(st.one_of(st.text(), st.from_regex(r"\A[0-9]{1,12}(\.[0-9]{1,12})?\Z")))
def test_any_text_is_a_deadline_within_a_day_or_a_value_error(text):
    try:
        assert 1 <= parse_deadline_ns(text) <= 86_400_000_000_000
    except ValueError as error:
        assert text in str(error)


@given(st.integers(1, 86_400_000))
def test_whole_milliseconds_are_exact(milliseconds):
    assert parse_deadline_ns(str(milliseconds)) == milliseconds * 1_000_000
