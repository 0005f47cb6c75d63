"""text: there and back without a loss, and every window of it."""

import hashlib
import http.server
import threading
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import text as texts
from helpers.text import (
    DATA,
    CharTokenizer,
    Corpus,
    WordTokenizer,
    get_batch,
    load_corpus,
    load_text,
)

TOKENIZERS = [CharTokenizer, WordTokenizer]


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@given(text=st.text(min_size=1))
@settings(deadline=None, max_examples=100)
def test_any_text_comes_back_as_it_was(tokenizer, text):
    learned = tokenizer(text)
    ids = learned.encode(text)
    assert ids.dtype == torch.long
    assert learned.decode(ids) == text
    assert learned.decode(ids.tolist()) == text
    assert "".join(learned.split(text)) == text
    assert set(ids.tolist()) == set(range(len(learned)))
    assert learned.vocabulary == sorted(set(learned.vocabulary))
    torch.testing.assert_close(tokenizer.of(learned.vocabulary).encode(text), ids)


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
    assert letters.encode("hole").tolist() == [2, 4, 3, 1]
    assert len(letters) == 5


def test_a_word_keeps_the_space_before_it_and_signs_stand_alone():
    words = WordTokenizer("A cat, a cat.\n")
    assert words.vocabulary == ["\n", " a", " cat", ",", ".", "A"]
    assert words.encode("A cat.").tolist() == [5, 2, 4]


@pytest.mark.parametrize(
    ("learned", "text", "said"),
    [
        (CharTokenizer("hello"), "hold!", r"lacks \['d', '!'\].*token 3"),
        (WordTokenizer("a cat sat"), "a dog sat", r"lacks \[' dog'\].*token 1"),
        (CharTokenizer("abc"), "~", r"lacks \['~'\].*token 0"),
    ],
)
def test_unknown_tokens_are_named_with_the_place_of_the_first(learned, text, said):
    with pytest.raises(ValueError, match=said):
        learned.encode(text)


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_nothing_becomes_no_ids_but_makes_no_vocabulary(tokenizer):
    assert tokenizer("abc").encode("").shape == (0,)
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


def test_windows_begin_only_where_they_may():
    ids, starts = torch.arange(50), torch.tensor([3, 17, 40])
    x, y = get_batch(ids, 7, 200, torch.Generator().manual_seed(1), starts)
    assert set(x[:, 0].tolist()) == {3, 17, 40}
    torch.testing.assert_close(y, x + 1)


def test_windows_of_stories_begin_behind_a_start_and_fit():
    tokenizer = CharTokenizer("ab\n")
    ids = tokenizer.encode("ab\nab\nabab\na")
    corpus = Corpus(tokenizer, ids, ids, start="\n")
    assert corpus.starts(ids, 4).tolist() == [2, 5]
    assert Corpus(tokenizer, ids, ids).starts(ids, 4).tolist() == list(range(len(ids) - 4))
    with pytest.raises(ValueError, match=r"12 tokens.*block_size = 12"):
        get_batch(ids, 12, 2, starts=corpus.starts(ids, 12))


def test_the_stories_bring_a_held_out_text_of_their_own():
    corpus = load_corpus("stories")
    assert corpus.start == "\n"
    assert corpus.tokenizer.decode(corpus.train) == load_text("stories")
    assert corpus.tokenizer.decode(corpus.held_out) == load_text("stories_held_out")


def test_of_any_other_text_the_last_tenth_is_held_out(tmp_path):
    path = tmp_path / "own.txt"
    path.write_text("abcdefghij" * 7, encoding="utf-8")
    corpus = load_corpus(path, CharTokenizer)
    assert (len(corpus.train), len(corpus.held_out), corpus.start) == (63, 7, None)
    assert corpus.tokenizer.decode(torch.cat([corpus.train, corpus.held_out])) == "abcdefghij" * 7


def test_a_mark_at_the_start_of_a_file_is_no_part_of_the_text(tmp_path):
    path = tmp_path / "own.txt"
    path.write_bytes("\ufeffabc".encode())
    assert load_text(path) == "abc"


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home of Tiny Shakespeare on this machine; returns what it serves, by path."""
    served = {}

    class Home(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", str(len(served["whole"])))
            self.end_headers()
            self.wfile.write(served["sent"])

        def log_message(self, *said):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Home)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    served["whole"] = served["sent"] = b"First Citizen:\nBefore we proceed\n" * 9000
    monkeypatch.setattr(texts, "SHAKESPEARE", f"http://127.0.0.1:{server.server_port}/input.txt")
    digest = hashlib.sha256(served["whole"]).hexdigest()
    monkeypatch.setattr(texts, "SHAKESPEARE_SHA256", digest)
    monkeypatch.setattr(texts, "DATA", tmp_path)
    yield served
    server.shutdown()
    server.server_close()
    thread.join()


def test_tiny_shakespeare_is_fetched_once_and_kept(home, tmp_path):
    text = load_text("tinyshakespeare")
    assert text.encode() == home["whole"]
    home["sent"] = b""  # a second look does not ask again
    assert load_text("tinyshakespeare") == text
    assert [file.name for file in tmp_path.iterdir()] == ["tinyshakespeare.txt"]


@pytest.mark.parametrize("change", [lambda sent: sent[:-100], lambda sent: b"X" + sent[1:]])
def test_a_copy_that_is_cut_short_or_altered_is_refused_and_not_kept(home, tmp_path, change):
    home["sent"] = change(home["sent"])
    with pytest.raises((ValueError, ConnectionError), match=r"download .* save it as"):
        load_text("tinyshakespeare")
    assert list(tmp_path.iterdir()) == []


def test_a_kept_copy_that_was_altered_is_refused(home, tmp_path):
    (tmp_path / "tinyshakespeare.txt").write_bytes(home["whole"][:-1])
    with pytest.raises(ValueError, match=r"SHA-256.*delete"):
        load_text("tinyshakespeare")


def test_without_a_network_one_sentence_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(texts, "SHAKESPEARE", "http://127.0.0.1:9/input.txt")
    monkeypatch.setattr(texts, "DATA", tmp_path / "data")
    with pytest.raises(ConnectionError, match=r"download http.* save it as data/tinyshakespeare"):
        load_text("tinyshakespeare")


def test_the_checksum_is_that_of_tiny_shakespeare():
    path = Path(__file__).resolve().parents[2] / "shared" / "data" / "tinyshakespeare.txt"
    if not path.is_file():
        pytest.skip("Tiny Shakespeare is not beside the project")
    assert hashlib.sha256(path.read_bytes()).hexdigest() == texts.SHAKESPEARE_SHA256


def test_a_path_is_taken_as_it_stands(tmp_path):
    (tmp_path / "notes").write_text("mine", encoding="utf-8")
    (tmp_path / "notes.txt").write_text("another", encoding="utf-8")
    assert load_text(tmp_path / "notes") == "mine"
    with pytest.raises(FileNotFoundError, match="there is no text"):
        load_text("a whole text in place of its name " * 40)
    (tmp_path / "old").write_bytes(b"caf\xe9")
    with pytest.raises(ValueError, match="old is not in UTF-8"):
        load_text(tmp_path / "old")
