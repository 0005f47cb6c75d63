"""text: there and back without a loss, and every window of it."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.text import DATA, CharTokenizer, WordTokenizer, get_batch, load_text

TOKENIZERS = [CharTokenizer, WordTokenizer]


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@given(text=st.text(min_size=1))
@settings(deadline=None, max_examples=100)
def test_any_text_comes_back_as_it_was(tokenizer, text):
    learned = tokenizer(text)
    ids = learned.encode(text)
    assert learned.decode(ids) == text
    assert learned.decode(torch.tensor(ids)) == text
    assert "".join(learned.split(text)) == text
    assert set(ids) == set(range(len(learned)))
    assert learned.vocabulary == sorted(set(learned.vocabulary))
    assert tokenizer.of(learned.vocabulary).encode(text) == ids


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@pytest.mark.parametrize(
    "text", ["a\n\tb", "  two  spaces ", "“naïve” — 日本語, 👩‍🚀!", "don't_1 2.5"]
)
def test_spaces_line_ends_and_signs_of_every_script_come_back(tokenizer, text):
    learned = tokenizer(text)
    assert learned.decode(learned.encode(text)) == text


def test_characters_are_numbered_in_sorted_order():
    letters = CharTokenizer("hello\n")
    assert letters.vocabulary == ["\n", "e", "h", "l", "o"]
    assert letters.encode("hole") == [2, 4, 3, 1]
    assert len(letters) == 5


def test_a_word_keeps_the_space_before_it_and_signs_stand_alone():
    words = WordTokenizer("A cat, a cat.\n")
    assert words.vocabulary == ["\n", " a", " cat", ",", ".", "A"]
    assert words.encode("A cat.") == [5, 2, 4]


@pytest.mark.parametrize(
    ("learned", "text", "said"),
    [
        (CharTokenizer("hello"), "hold!", r"lacks \['!', 'd'\].*token 3"),
        (WordTokenizer("a cat sat"), "a dog sat", r"lacks \[' dog'\].*token 1"),
        (CharTokenizer("abc"), "~", r"lacks \['~'\].*token 0"),
    ],
)
def test_unknown_tokens_are_named_with_the_place_of_the_first(learned, text, said):
    with pytest.raises(ValueError, match=said):
        learned.encode(text)


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_nothing_becomes_no_ids_but_makes_no_vocabulary(tokenizer):
    assert tokenizer("abc").encode("") == []
    assert tokenizer("abc").decode([]) == ""
    with pytest.raises(ValueError, match="the text is empty"):
        tokenizer("")


@pytest.mark.parametrize("kind", [list, torch.tensor])
@pytest.mark.parametrize("ids", [[0, 4], [0, -1]])
def test_ids_outside_the_vocabulary_are_not_decoded(kind, ids):
    with pytest.raises(ValueError, match=f"id {ids[1]} .*0 to 3"):
        CharTokenizer("hello").decode(kind(ids))


@pytest.mark.parametrize(("N", "block_size"), [(3, 1), (5, 4), (9, 4), (12, 5)])
def test_every_window_that_fits_is_drawn_and_no_other(N, block_size):
    ids = torch.arange(N) * 10
    x, y = get_batch(ids, block_size, 400, torch.Generator().manual_seed(1))
    assert x.shape == y.shape == (400, block_size)
    torch.testing.assert_close(y, x + 10)
    torch.testing.assert_close(x, x[:, :1] + 10 * torch.arange(block_size))
    starts, counts = (x[:, 0] // 10).unique(return_counts=True)
    assert starts.tolist() == list(range(N - block_size))
    assert counts.min() > 400 / (N - block_size) / 2


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 4), st.integers(0, 10**6))
@settings(deadline=None, max_examples=30)
def test_targets_follow_their_inputs_in_the_text(block_size, spare, batch_size, seed):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(50, (block_size + spare,), generator=generator)
    x, y = get_batch(ids, block_size, batch_size, generator)
    torch.testing.assert_close(x[:, 1:], y[:, :-1])
    windows = ids.unfold(0, block_size + 1, 1).tolist()
    assert all([*a, b] in windows for a, b in zip(x.tolist(), y[:, -1].tolist(), strict=True))


def test_the_same_seed_draws_the_same_batch_whatever_else_is_drawn():
    ids, draws = torch.arange(100), []
    for other_seed in (1, 2):
        torch.manual_seed(other_seed)
        draws.append(get_batch(ids, 8, 4, torch.Generator().manual_seed(7))[0])
    torch.testing.assert_close(*draws)
    state = torch.get_rng_state()
    get_batch(ids, 8, 4, torch.Generator().manual_seed(7))
    torch.testing.assert_close(torch.get_rng_state(), state)
    generator = torch.Generator().manual_seed(7)
    first, second = (get_batch(ids, 8, 4, generator)[0] for _ in range(2))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("N", [0, 7, 8])
def test_a_text_too_short_for_a_window_is_refused_with_both_numbers(N):
    with pytest.raises(ValueError, match=rf"{N} tokens.*block_size = 8.*at least 9"):
        get_batch(torch.arange(N), block_size=8, batch_size=2)


@pytest.mark.parametrize("sizes", [(0, 2), (4, 0), (-1, 2)])
def test_sizes_below_1_are_refused(sizes):
    with pytest.raises(ValueError, match="at least 1"):
        get_batch(torch.arange(20), *sizes)


def test_the_bundled_text_is_found_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = load_text("stories")
    assert text == (DATA / "stories.txt").read_text(encoding="utf-8")
    assert len(text) > 1000


@pytest.mark.parametrize("kind", [str, lambda path: path])
def test_a_text_of_your_own_is_read_as_utf_8_with_plain_line_ends(tmp_path, kind):
    path = tmp_path / "own.txt"
    path.write_bytes("“naïve” — 日本\r\nsecond\rthird\n".encode())
    assert load_text(kind(path)) == "“naïve” — 日本\nsecond\nthird\n"


def test_a_text_that_is_not_there_is_named_with_those_that_are(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"'no such text'.*\['stories'.*path"):
        load_text("no such text")
    with pytest.raises(FileNotFoundError, match="own"):
        load_text(tmp_path / "own")
    with pytest.raises(FileNotFoundError, match="there is no text"):
        load_text(tmp_path)
