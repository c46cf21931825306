"""masking.py: blocks against a plain, one-row-at-a-time path, and the shares over many seeds."""

import collections
import random

import numpy as np
import pytest

import tokenization
from pretraining_data import masking


@pytest.fixture(scope="module")
def tables(toy_vocab):
    return masking.VocabTables(tokenization.load_vocab(toy_vocab), tokenization.is_cjk)


def shard(seed, tables, tokens=4000):
    """(ids, starts) of random words of 1 to 4 tokens."""
    rng = np.random.RandomState(seed)
    return rng.choice(tables.ordinary, tokens), rng.random_sample(tokens) < 0.55


def random_pairs(seed, count=60, longest=61, tokens=4000):
    rng = np.random.RandomState(seed)
    start = rng.randint(0, tokens - longest, count)
    length = rng.randint(2, longest + 1, count)
    middle = start + 1 + (rng.random_sample(count) * (length - 1)).astype(int)
    return np.stack([start, middle, start + length, rng.randint(0, 2, count)], 1)


def mask(rows, tables, seed, **changes):
    options = dict(masked_lm_prob=0.15, max_predictions=10, whole_words=True, ngram=1,
                   continuation_targets=False)
    options.update(changes)
    return masking.mask_rows(rows, tables, rng=np.random.RandomState(seed), **options)


def row_units(rows, row):
    """Positions in the row of each word: list of lists, without [CLS] and [SEP]."""
    begin, end = rows.offsets[row], rows.offsets[row + 1]
    length, first = end - begin, rows.first_lengths[row]
    units = []
    for position in range(length):
        if position in (0, first - 1, length - 1):
            continue
        if rows.starts[begin + position] or position - 1 in (0, first - 1):
            units.append([])
        units[-1].append(position)
    return units


def test_gathered_rows_equal_the_plain_ones(tables):
    ids, starts = shard(1, tables)
    pairs = random_pairs(2)
    rows = masking.gather(ids, starts, pairs, tables)
    for row, (start, middle, end, label) in enumerate(pairs.tolist()):
        halves = [range(start, middle), range(middle, end)]
        if label:
            halves.reverse()
        wanted = [tables.cls] + ids[halves[0]].tolist() + [tables.sep] \
            + ids[halves[1]].tolist() + [tables.sep]
        part = slice(rows.offsets[row], rows.offsets[row + 1])
        assert rows.ids[part].tolist() == wanted
        assert rows.first_lengths[row] == len(halves[0]) + 2
        kept = rows.starts[part].tolist()
        assert kept[0] and kept[1] and kept[len(halves[0]) + 1] and kept[len(halves[0]) + 2]
        assert kept[2:len(halves[0]) + 1] == starts[halves[0]].tolist()[1:]
    assert rows.labels.tolist() == pairs[:, 3].tolist()


@pytest.mark.parametrize("ngram", [1, 3])
@pytest.mark.parametrize("whole_words", [True, False])
def test_targets_put_back_restore_the_instance(tables, ngram, whole_words):
    rows = masking.gather(*shard(3, tables), random_pairs(4), tables)
    for seed in range(20):
        masks = mask(rows, tables, seed, ngram=ngram, whole_words=whole_words)
        restored = masks.input_ids.copy()
        for row in range(len(rows.labels)):
            part = slice(masks.offsets[row], masks.offsets[row + 1])
            positions = masks.positions[part]
            assert sorted(set(positions.tolist())) == positions.tolist()
            restored[rows.offsets[row] + positions] = masks.target_ids[part]
        assert np.array_equal(restored, rows.ids)
        assert not set(np.unique(masks.input_ids)) - set(tables.ordinary) - {
            tables.cls, tables.sep, tables.mask}


@pytest.mark.parametrize("ngram", [1, 3])
def test_masks_are_unions_of_words_within_the_cap(tables, ngram):
    rows = masking.gather(*shard(5, tables), random_pairs(6), tables)
    for seed in range(20):
        masks = mask(rows, tables, seed, ngram=ngram)
        for row in range(len(rows.labels)):
            masked = set(masks.positions[masks.offsets[row]:masks.offsets[row + 1]].tolist())
            length = int(rows.offsets[row + 1] - rows.offsets[row])
            wanted = min(max(1, int(round(length * 0.15))), 10)
            units = row_units(rows, row)
            assert all(masked >= set(unit) or not masked & set(unit) for unit in units)
            assert len(masked) <= max(wanted, min(map(len, units)))
            assert masked or min(map(len, units)) > 10


def test_single_words_use_the_budget_up(tables):
    """Where a word of one token is left over, a row has exactly round(15 %) masked tokens."""
    rows = masking.gather(*shard(7, tables), random_pairs(8), tables)
    masks = mask(rows, tables, 0)
    for row in range(len(rows.labels)):
        masked = set(masks.positions[masks.offsets[row]:masks.offsets[row + 1]].tolist())
        length = int(rows.offsets[row + 1] - rows.offsets[row])
        left = min(max(1, int(round(length * 0.15))), 10) - len(masked)
        assert all(len(unit) > left for unit in row_units(rows, row) if unit[0] not in masked)


@pytest.mark.parametrize("seed", range(30))
def test_rounds_equal_the_greedy_choice(seed):
    rng = random.Random(seed)
    sizes = np.array([[rng.choice([0, 1, 1, 2, 2, 3, 7]) for _ in range(25)] for _ in range(40)])
    budgets = np.array([rng.randint(0, 30) for _ in range(40)])
    taken = masking.fill_budgets(sizes, budgets)
    for row in range(40):
        left, wanted = budgets[row], []
        for size in sizes[row]:
            wanted.append(0 < size <= left)
            left -= size * wanted[-1]
        assert taken[row].tolist() == wanted


def test_order_is_a_permutation_with_the_empty_places_last():
    filled = np.arange(9) < np.array([[3], [9], [0], [1]])
    firsts = collections.Counter()
    rng = np.random.RandomState(0)
    for _ in range(600):
        order = masking.random_order(filled, rng)
        for row, count in enumerate((3, 9, 0, 1)):
            assert sorted(order[row, :count].tolist()) == list(range(count))
            assert (order[row, count:] >= count).all()
        firsts[int(order[0, 0])] += 1
    assert all(abs(count - 200) < 60 for count in firsts.values())  # 5 standard deviations


@pytest.mark.parametrize("longest, odds", [
    (1, [1.0]), (2, [2 / 3.0, 1 / 3.0]), (3, [6 / 11.0, 3 / 11.0, 2 / 11.0])])
def test_ngram_odds(longest, odds):
    assert np.allclose(masking.ngram_odds(longest), odds)
    starts = np.flatnonzero(masking.join_words(np.zeros(60000, bool), longest,
                                               np.random.RandomState(1)))
    lengths = np.diff(starts)
    assert np.abs(np.bincount(lengths, minlength=longest + 1)[1:] / len(lengths) - odds).max() \
        < 0.012


def test_chosen_ngrams_have_the_odds_too(tables):
    ids, _ = shard(9, tables)
    pairs = np.array([[0, 250, 500, 0]] * 200)
    rows = masking.gather(ids, np.ones(len(ids), bool), pairs, tables)
    rng = np.random.RandomState(3)
    starts, lengths = masking.find_units(rows, True, 3, rng)
    chosen = masking.choose_units(lengths, np.searchsorted(starts, rows.offsets),
                                  np.full(200, 75), np.zeros(200, bool), 75, rng)
    shares = np.bincount(lengths[chosen], minlength=4)[1:] / chosen.sum()
    assert np.abs(shares - [6 / 11.0, 3 / 11.0, 2 / 11.0]).max() < 0.02


def test_ngrams_do_not_cross_the_separator(tables):
    rows = masking.gather(*shard(10, tables), random_pairs(11), tables)
    for seed in range(5):
        starts, lengths = masking.find_units(rows, True, 3, np.random.RandomState(seed))
        special = set(masking.special_positions(rows).tolist())
        covered = masking.ranges(starts, lengths).tolist()
        assert not special & set(covered)
        assert sorted(special | set(covered)) == list(range(rows.offsets[-1]))


def test_eighty_ten_ten(tables):
    ids = np.random.RandomState(0).choice(tables.ordinary, 200000)
    read = masking.replace(ids, tables, np.random.RandomState(1))
    masked, same = (read == tables.mask).mean(), (read == ids).mean()
    assert abs(masked - 0.8) < 0.005
    assert abs(same - 0.1 - 0.1 / len(tables.ordinary)) < 0.005
    others = read[(read != tables.mask) & (read != ids)]
    counts = np.bincount(others, minlength=tables.size)
    assert counts[np.setdiff1d(np.arange(tables.size), tables.ordinary)].sum() == 0
    assert counts[tables.ordinary].min() > 0.5 * counts[tables.ordinary].mean()


def test_ordinary_tokens_are_those_of_text(tables, toy_vocab):
    vocab = tokenization.load_vocab(toy_vocab)
    ordinary = {token for token, index in vocab.items() if index in set(tables.ordinary.tolist())}
    assert {"鱼", "a", "##a", "9", "。"} <= ordinary
    assert not ordinary & {"[PAD]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "##鱼"}


def test_continuation_targets_inside_words_only(tables, toy_vocab):
    vocab = tokenization.load_vocab(toy_vocab)
    inverse = {index: token for token, index in vocab.items()}
    rows = masking.gather(*shard(12, tables), random_pairs(13), tables)
    plain = mask(rows, tables, 4)
    masks = mask(rows, tables, 4, continuation_targets=True)
    assert np.array_equal(plain.input_ids, masks.input_ids)
    flat = masks.positions + np.repeat(rows.offsets[:-1], np.diff(masks.offsets))
    changed = 0
    for position, target in zip(flat.tolist(), masks.target_ids.tolist()):
        token = inverse[int(rows.ids[position])]
        inside = not rows.starts[position] and tokenization.is_cjk(token[0])
        assert inverse[target] == ("##" + token if inside else token)
        changed += inside
    assert changed > 20


def test_described_rows_show_boundaries_and_targets(tables, toy_vocab):
    vocab = tokenization.load_vocab(toy_vocab)
    inverse = {index: token for token, index in vocab.items()}
    ids = np.array([vocab[char] for char in "渔港很热闹新的桥"])
    starts = np.array([1, 0, 1, 1, 0, 1, 1, 1], bool)
    rows = masking.gather(ids, starts, [[0, 5, 8, 1]], tables)
    assert "11 tokens, segments swapped, 0 masked\n[CLS]|新|的|桥|[SEP]|渔港|很|热闹|[SEP]" == \
        masking.describe_row(rows, None, 0, inverse)
    masks = masking.Masks(np.where(rows.ids == vocab["港"], vocab["[MASK]"], rows.ids),
                          np.array([6]), np.array([vocab["港"]]), np.array([0, 1]))
    assert "|渔[MASK]→港|很|" in masking.describe_row(rows, masks, 0, inverse)
