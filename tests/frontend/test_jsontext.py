"""JSON text: equal to the standard library where that keeps the text, and to the text where it does not."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_nb.frontend.jsontext import NUMBER_LITERAL, dumps, loads, quote

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)


@given(values)
def test_same_text_as_the_standard_library(value):
    text = json.dumps(value, ensure_ascii=False)
    assert dumps(value) == text
    assert dumps(value, compact=True) == json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    assert dumps(loads(text)) == text


@pytest.mark.parametrize(
    "literal",
    ["2.50", "-0", "-0.0", "1e5", "1E+5", "1e400", "-1e-999", "18446744073709551617", "9" * 5000, "0.1000", "1.0"],
)
def test_number_literals_survive(literal):
    assert NUMBER_LITERAL.fullmatch(literal)
    assert dumps(loads(literal)) == literal
    assert dumps(loads(f'{{"b": [{literal}], "a": {literal}}}')) == f'{{"b": [{literal}], "a": {literal}}}'
    assert str(loads(literal)) == literal


@pytest.mark.parametrize("literal", ["01", "+1", "1.", ".5", "1e", "0x1", "NaN", "-Infinity", "1_0", "\u0661", ""])
def test_what_is_no_number(literal):
    assert not NUMBER_LITERAL.fullmatch(literal)
    with pytest.raises(ValueError):
        loads(literal)


def test_lone_surrogates_stay_escaped():
    assert quote("a\ud800ü") == '"a\\ud800ü"'
    assert dumps(loads('"\\ud83d\\ude00\\udc00"')) == '"😀\\udc00"'
    dumps({"\udfff": "\ud800"}).encode()


@pytest.mark.parametrize("opening", ["[", '{"a":', '[{"b":'])
def test_nesting_is_bounded(opening):
    containers = sum(opening.count(bracket) for bracket in "[{")
    closing = "".join({"[": "]", "{": "}"}[char] for char in reversed(opening) if char in "[{")

    def nested(depth):
        return opening * (depth // containers) + "1" + closing * (depth // containers)

    assert dumps(loads(nested(200))) == nested(200).replace(":", ": ")
    for depth in (202, 2000, 200_000):
        with pytest.raises(ValueError, match=r"^JSON is nested too deeply$"):
            loads(nested(depth))


def test_many_containers_side_by_side_are_fine():
    text = "[" + ", ".join(["[]", "{}"] * 500) + "]"
    assert dumps(loads(text)) == text
