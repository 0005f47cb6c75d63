"""stories: every probability is the true one, and what was drawn is what decides."""

import math
import random
from statistics import mean, stdev

import pytest
import torch

from helpers.stories import (
    PLOTS,
    START,
    Oracle,
    deciders,
    entropy,
    is_story,
    make,
    next_token_probs,
    surprises,
    write,
)
from helpers.text import DATA, WordTokenizer, load_corpus, load_text
from helpers.train import estimate_loss

TOKENIZER = WordTokenizer(load_text("stories"))


def some_stories(count, seed=3):
    rng = random.Random(seed)
    return [write(rng) for _ in range(count)]


def test_the_bundled_texts_are_those_that_the_command_writes():
    held_out = make(400, random.Random(1))
    assert load_text("stories_held_out") == held_out
    lines = set(held_out.splitlines(keepends=True))
    assert load_text("stories") == make(3600, random.Random(0), without=lines)


def test_no_held_out_story_is_in_the_training_text():
    held_out = set(load_text("stories_held_out").splitlines())
    assert not held_out & set(load_text("stories").splitlines())
    assert 800_000 < (DATA / "stories.txt").stat().st_size < 1_200_000


def test_the_words_are_few_and_a_story_is_cut_into_the_tokens_it_was_made_of():
    assert 120 <= len(TOKENIZER) <= 250
    for story in some_stories(50):
        assert TOKENIZER.split("".join(story)) == story


def test_what_may_come_next_is_as_likely_as_it_is_often():
    prefix = ["One", " rainy", " morning", " Mara", " had"]
    told = [story for story in some_stories(60_000) if story[:5] == prefix]
    for n in (5, 6):
        probs = next_token_probs(told[0][:n])
        same = [story[n] for story in told if story[:n] == told[0][:n]]
        assert sum(probs.values()) == pytest.approx(1)
        for token, share in probs.items():
            error = math.sqrt(share * (1 - share) / len(same))
            assert abs(same.count(token) / len(same) - share) <= 4 * error + 1e-9


def test_the_plot_is_open_until_its_verb():
    probs = next_token_probs(["One", " rainy", " morning", " Mara"])
    assert probs == pytest.approx({" lost": 0.5, " had": 0.5})
    assert next_token_probs(["One", " rainy"]) == pytest.approx(
        {" morning": 2 / 3, " night": 1 / 3}
    )


def test_the_surprises_of_a_story_are_those_of_its_tokens_one_by_one():
    for story in some_stories(5):
        one_by_one = [-math.log(next_token_probs(story[:n])[story[n]]) for n in range(len(story))]
        assert surprises(story) == pytest.approx(one_by_one)


def test_every_story_of_a_plot_is_as_likely_so_the_entropy_is_exact():
    by_length = {}
    for story in some_stories(400):
        by_length.setdefault(len(story), set()).add(round(sum(surprises(story)), 6))
    assert len(by_length) > 5
    exact = entropy()
    told = some_stories(4000, seed=8)
    nats = [sum(surprises(story)) for story in told]
    assert abs(mean(nats) - exact.per_story) < 4 * stdev(nats) / math.sqrt(len(nats)) + 1e-9
    assert sum(nats) / sum(map(len, told)) == pytest.approx(exact.per_token, rel=0.01)
    assert sum(nats) / len("".join(map("".join, told))) == pytest.approx(
        exact.per_character, rel=0.01
    )


def test_the_oracle_on_held_out_text_has_the_entropy_as_its_loss():
    tokens = TOKENIZER.split(load_text("stories_held_out"))
    ends = [n + 1 for n, token in enumerate(tokens) if token == START]
    told = [tokens[a:b] for a, b in zip([0, *ends], ends, strict=False)]
    losses = [sum(surprises(story)) - entropy().per_token * len(story) for story in told]
    assert abs(mean(losses)) < 4 * stdev(losses) / math.sqrt(len(losses))


def test_the_oracle_is_a_model_and_no_other_is_better():
    corpus = load_corpus("stories")
    oracle = Oracle(corpus.tokenizer)
    idx = corpus.tokenizer.encode(START + "".join(some_stories(1)[0]))[None]
    probs = oracle(idx).softmax(dim=-1)
    torch.testing.assert_close(probs.sum(dim=-1), torch.ones(idx.shape))
    floor = estimate_loss(oracle, corpus, block_size=40, batches=1)
    blurred = lambda idx: (oracle(idx).softmax(dim=-1) + 1e-3).log()  # noqa: E731
    model = torch.nn.Module()
    model.forward = blurred
    assert floor < estimate_loss(model, corpus, block_size=40, batches=1)


def test_deciders_are_where_the_word_was_drawn_before():
    story = "One rainy night Mara heard a fox cry in the mill. She had only a red hat, but she went"
    tokens = TOKENIZER.split(story)
    found = {n: places for n, places in enumerate(deciders(tokens)) if places}
    assert [tokens[n] for n in found] == [" She", " she"]
    assert all(places == [tokens.index(" Mara")] for places in found.values())


def test_what_is_decided_leaves_nothing_open_but_the_plot():
    for story in some_stories(40):
        for places, surprise in zip(deciders(story), surprises(story), strict=True):
            assert not places or surprise <= math.log(2) + 1e-9
            assert all(START not in story[place] for place in places)


def test_a_word_changed_somewhere_is_no_story():
    for story in some_stories(20):
        assert is_story(story)
        assert not is_story(story[:-1])
        assert not is_story([*story, "One"])
        repeated = [n for n, places in enumerate(deciders(story)) if places]
        for n in repeated:
            other = next(token for token in TOKENIZER.vocabulary if token != story[n])
            assert not is_story([*story[:n], other, *story[n + 1 :]])


def test_what_no_story_has_is_named_with_its_place():
    with pytest.raises(ValueError, match=r"' purple' \(token 1\) after 'One'"):
        next_token_probs(["One", " purple"])
    assert next_token_probs(some_stories(1)[0]) == {}


def test_stories_fit_into_the_window_of_the_bundled_model():
    assert max(map(len, PLOTS)) < 88


def test_the_oracle_refuses_what_does_not_begin_with_a_story():
    with pytest.raises(ValueError, match="START"):
        Oracle(TOKENIZER)(TOKENIZER.encode("One rainy night")[None])
    with pytest.raises(ValueError, match=r"' foo'"):
        surprises(["One", " foo"])
