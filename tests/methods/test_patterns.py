"""Name patterns against a matcher written out by hand, which knows no regular expressions."""

import string

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

import stochens
from stochens import Dropout, InputError
from stochens.methods.patterns import first_match, matches, refuse_unmatched


def fits(pattern: str, text: str) -> bool:
    """As a shell reads it: * any text, ? one character, [ab] or [a-c] one of, [!ab] none of."""
    if not pattern:
        return not text
    if pattern[0] == "*":
        return any(fits(pattern[1:], text[k:]) for k in range(len(text) + 1))
    if not text:
        return False
    if pattern[0] == "[":
        not_these = pattern[1:2] == "!"
        first = 2 if not_these else 1
        end = pattern.find("]", first + 1)  # the first character may itself be a ]
        if end >= 0:
            one = _is_one_of(text[0], pattern[first:end])
            return one != not_these and fits(pattern[end + 1 :], text[1:])
    return pattern[0] in ("?", text[0]) and fits(pattern[1:], text[1:])


def _is_one_of(letter: str, listed: str) -> bool:
    while listed:
        if len(listed) > 2 and listed[1] == "-":
            if listed[0] <= letter <= listed[2]:
                return True
            listed = listed[3:]
        else:
            if letter == listed[0]:
                return True
            listed = listed[1:]
    return False


paths = st.lists(st.text("ab1_", min_size=1, max_size=3), min_size=1, max_size=3).map(".".join)
near = st.text("ab1_.*?", max_size=6)  # patterns that often match
odd = st.text("ab.*?[]!-", max_size=8)
wild = st.text(string.printable, max_size=6)
patterns = near | odd | wild


@settings(max_examples=500)
@given(st.lists(patterns, max_size=3), paths | wild)
@example(["[!]a]"], "b")
@example(["[]-a]"], "^")
@example(["[b-a]"], "a")
@example(["["], "[")
@example(["a\n"], "a")
def test_a_path_matches_as_a_shell_says(several, path):
    assert matches(several, path) == any(fits(pattern, path) for pattern in several)


@settings(max_examples=300)
@given(st.dictionaries(patterns, st.floats(0, 0.9), max_size=4), paths)
def test_the_first_pattern_that_matches_has_the_say(values, path):
    found = [value for pattern, value in values.items() if fits(pattern, path)]
    assert first_match(values, path, None) == (found[0] if found else None)


@settings(max_examples=300)
@given(st.lists(patterns, max_size=3), st.lists(paths, max_size=4))
def test_a_pattern_that_matches_nothing_is_refused_by_name(several, layers):
    idle = [p for p in several if not any(fits(p, path) for path in layers)]
    if not idle:
        refuse_unmatched(several, layers)
        return
    with pytest.raises(InputError) as said:
        refuse_unmatched(several, layers)
    assert f"pattern {idle[0]!r} matches no layer" in str(said.value)


def nested() -> nn.Module:
    blocks = ({f"linear{k}": nn.Linear(3, 3) for k in (1, 2)} for _ in range(2))
    parts = {"encoder": nn.Sequential(*map(nn.ModuleDict, blocks))}
    return nn.ModuleDict(parts | {"neck": nn.Linear(3, 3), "head": nn.Linear(3, 2)})


LAYERS = [name for name, m in nested().named_modules() if isinstance(m, nn.Linear)]
of_these = st.sampled_from([*LAYERS, "encoder.*", "*.linear1", "*1*", "*.?.linear2", "n[!o]*", "*"])


@settings(max_examples=60)
@given(st.lists(of_these, max_size=2), st.dictionaries(of_these, st.sampled_from([0.2, 0.5])))
def test_the_layers_of_a_network_get_the_noise_that_patterns_say(skip, rates):
    want = {}
    for path in LAYERS:
        rate = [p for pattern, p in rates.items() if fits(pattern, path)]
        if any(fits(pattern, path) for pattern in skip) or (path == "head" and not rate):
            continue  # the output stays as it is unless it is named
        want[path] = rate[0] if rate else 0.1
    method = Dropout(0.1, rates=rates, skip=skip)
    if not want:
        with pytest.raises(InputError, match="found no layer to make stochastic"):
            stochens.stochastic(nested(), method)
        return
    net = stochens.stochastic(nested(), method)
    layers = stochens.methods.stochastic_layers(net)
    assert {path: layer.output_rate for path, layer in layers.items()} == want
