"""create_pretraining_data.py as users run it: the cases from the field."""

import collections
import gzip
import itertools
import json
import os
import random

import jieba
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from absl import flags
from helpers.toy_records import toy_record
from helpers.toys import TOY_SENTENCES, write_text

import cli
import create_pretraining_data
import tokenization
from pretraining_data import records, shards
from pretraining_data.documents import Document

SETTINGS = shards.Settings(
    masking="static", max_seq_length=64, max_predictions_per_seq=10, masked_lm_prob=0.15, ngram=1,
    do_whole_word_mask=True, continuation_targets=False, do_lower_case=True, non_chinese=False,
    segmenter="jieba-0.42.1", input_encoding="utf-8", random_seed=12345, dupe_factor=10,
    short_seq_prob=0.1, compress=False, num_shards=1)


def create(vocab, text, output, **changes):
    """Runs the script in this process, with toy lengths; returns the output's path."""
    values = flags.FlagValues()
    create_pretraining_data.define_flags(values)
    options = dict(vocab_file=vocab, input_file=str(text), output_file=str(output),
                   max_seq_length=64, max_predictions_per_seq=10, num_workers=1)
    options.update(changes)
    values(["create"] + ["--{}={}".format(*option) for option in options.items()])
    create_pretraining_data.main(values)
    return str(output)


def examples(*paths):
    """Features of all records as dicts of lists."""
    found = []
    for path in paths:
        for record in records.read_records(str(path)):
            feature = tf.train.Example.FromString(record).features.feature
            found.append({name: list(getattr(value, value.WhichOneof("kind")).value)
                          for name, value in feature.items()})
    return found


def restored(example):
    """(ids of the first half, ids of the second half), targets put back, specials cut off."""
    ids, used = list(example["input_ids"]), sum(example["input_mask"])
    for position, target, weight in zip(example["masked_lm_positions"], example["masked_lm_ids"],
                                        example["masked_lm_weights"]):
        if weight:
            ids[position] = target
    first = example["segment_ids"].index(1) if 1 in example["segment_ids"] else used
    assert not any(ids[used:]) and not any(example["segment_ids"][used:])
    return ids[:first], ids[first:used]


def segmented_sentences(vocab, sentences):
    tokenizer = tokenization.FullTokenizer(vocab)
    return [tokenizer.convert_tokens_to_ids(tokenizer.tokenize(text)) for text in sentences]


@pytest.mark.parametrize("seed, options", [
    (1, {}), (2, {"ngram": 3}), (3, {"short_seq_prob": 1.0}), (4, {"do_whole_word_mask": False}),
    (5, {"max_seq_length": 21, "max_predictions_per_seq": 3})])
def test_restored_records_are_the_tokens_of_two_neighbours(toy_vocab, tmp_path, seed, options):
    sentences = TOY_SENTENCES[:6]
    text = write_text(tmp_path / "a.txt", "\n".join(sentences))
    found = examples(create(toy_vocab, text, tmp_path / "tf.tfrecord", random_seed=seed, **options))
    vocab = tokenization.load_vocab(toy_vocab)
    whole = sum(segmented_sentences(toy_vocab, sentences), [])
    assert len(found) >= 10
    for example in found:
        assert sorted(example) == sorted(toy_record(np.random))
        first, second = restored(example)
        assert first[0] == vocab["[CLS]"] and first[-1] == second[-1] == vocab["[SEP]"]
        parts = [first[1:-1], second[:-1]]
        if example["next_sentence_labels"] == [1]:
            parts.reverse()
        joined = parts[0] + parts[1]
        assert all(parts) and any(whole[start:start + len(joined)] == joined
                                  for start in range(len(whole)))
        assert len(example["masked_lm_weights"]) == options.get("max_predictions_per_seq", 10)
        assert len(example["input_ids"]) == options.get("max_seq_length", 64)


def masked_spans(maker, documents, seeds):
    """For each instance of each seed: (masked token positions, restored ids) of both halves."""
    for seed in range(seeds):
        maker.settings = maker.settings._replace(random_seed=seed)
        for rows, masks in maker.blocks(maker.prepare(documents), 0):
            for row in range(len(rows.labels)):
                part = slice(masks.offsets[row], masks.offsets[row + 1])
                yield (set(masks.positions[part].tolist()),
                       rows.ids[rows.offsets[row]:rows.offsets[row + 1]].tolist())


@pytest.mark.parametrize("whole_words", [True, False])
def test_masked_positions_are_jieba_words(toy_vocab, whole_words):
    sentence = "使用语言模型来预测下一个词的概率"
    edges = [0] + list(itertools.accumulate(map(len, jieba.lcut(sentence))))
    maker = shards.ShardMaker(SETTINGS._replace(do_whole_word_mask=whole_words, dupe_factor=1),
                              toy_vocab)
    ids = maker.tokenizer.convert_tokens_to_ids(list(sentence))
    parts_of_words = 0
    documents = [Document(0, 0, sentence + "\n老师让大家写一篇短文")]
    for masked, row in masked_spans(maker, documents, 500):
        start = next(index for index in range(len(row)) if row[index:index + len(ids)] == ids)
        assert len(masked) <= 4
        for first, last in zip(edges, edges[1:]):
            word = set(range(start + first, start + last))
            parts_of_words += bool(word & masked) and not word <= masked
    assert parts_of_words == 0 if whole_words else parts_of_words > 100


def test_halves_are_neighbours_and_never_the_same(toy_vocab):
    one, three = TOY_SENTENCES[0], TOY_SENTENCES[1:4]
    documents = [Document(0, 0, one), Document(0, 50, "\n".join(three))]
    maker = shards.ShardMaker(SETTINGS._replace(short_seq_prob=1.0, dupe_factor=3), toy_vocab)
    ids = segmented_sentences(toy_vocab, three)
    whole = sum(ids, [])
    for seed in range(200):
        maker.settings = maker.settings._replace(random_seed=seed)
        prepared = maker.prepare(documents)
        assert prepared.counts["documents skipped, of one sentence"] == 1
        for start, middle, end, _ in prepared.pairs.tolist():
            first, second = prepared.ids[start:middle].tolist(), prepared.ids[middle:end].tolist()
            assert first != second and first + second == whole
            assert first in (ids[0], ids[0] + ids[1])


def test_label_one_means_swapped(toy_vocab, tmp_path):
    """300 documents of 4 numbered sentences: n…, document and sentence number as single digits."""
    documents = ["\n".join("n{} {} 的桥{}。".format(" ".join(str(number)), "新", place)
                           for place in range(4)) for number in range(300)]
    text = write_text(tmp_path / "a.txt", "\n\n".join(documents))
    found = examples(create(toy_vocab, text, tmp_path / "tf.tfrecord", dupe_factor=2))
    inverse = {index: token for token, index in tokenization.load_vocab(toy_vocab).items()}
    labels = []
    for example in found:
        halves = ["".join(inverse[index] for index in half) for half in restored(example)]
        numbers = [[part[1:part.index("新")] for part in
                    half.replace("[CLS]", "").replace("[SEP]", "").split("。") if part]
                   for half in halves]
        places = [[int(part[-1]) for part in
                   half.replace("[CLS]", "").replace("[SEP]", "").split("。") if part]
                  for half in halves]
        assert len(set(numbers[0] + numbers[1])) == 1
        swapped = places[0][0] > places[1][0]
        assert (places[1] + places[0] if swapped else places[0] + places[1]) == sorted(
            places[0] + places[1])
        assert example["next_sentence_labels"] == [int(swapped)]
        labels.append(swapped)
    assert len(found) >= 600 and abs(np.mean(labels) - 0.5) < 0.05


def test_a_blank_line_after_every_sentence_is_noticed(toy_vocab, tmp_path, caplog):
    text = write_text(tmp_path / "a.txt", "\n\n".join(TOY_SENTENCES) + "\n\n渔港\n热闹")
    create(toy_vocab, text, tmp_path / "tf.tfrecord")
    assert "12 of 13 documents hold one sentence" in caplog.text
    assert "documents skipped, of one sentence: 12" in caplog.text


@pytest.mark.parametrize("text, options, words", [
    ("渔港\n热闹", {"input_file": "absent*.txt"}, ["--input_file", "absent*.txt"]),
    ("", {}, ["a.txt is empty"]),
    ("\n \n\t\n", {}, ["blank lines only"]),
    ("渔港", {}, ["no instance", "1 documents"]),
    ("渔港\n热闹", {"input_file": "{text},absent.txt"}, ["absent.txt"]),
    ("渔港\n热闹", {"vocab_file": "absent.txt"}, ["vocabulary absent.txt"]),
    ("渔港\n热闹", {"masked_lm_prob": 1.0}, ["--masked_lm_prob=1.0"]),
    ("渔港\n热闹", {"masked_lm_prob": "nan"}, ["--masked_lm_prob=nan"]),
    ("渔港\n热闹", {"short_seq_prob": "nan"}, ["--short_seq_prob=nan"]),
    ("渔港\n热闹", {"shard_range": "0:3", "num_shards": 2}, ["--shard_range", "2 shards"]),
    ("渔港\n热闹", {"shard_range": "0:3"}, ["--shard_range", "--num_shards"]),
    ("渔港\n热闹", {"input_encoding": "utf-16"}, ["--input_encoding", "utf-16"])])
def test_bad_input_fails_clearly_and_leaves_nothing(toy_vocab, tmp_path, text, options, words):
    path = write_text(tmp_path / "a.txt", text)
    options = {name: value.format(text=path) if isinstance(value, str) else value
               for name, value in options.items()}
    with pytest.raises(cli.UserError) as error:
        create(toy_vocab, options.pop("input_file", path), tmp_path / "out" / "tf.tfrecord",
               **dict({"vocab_file": toy_vocab}, **options))
    assert all(word in str(error.value) for word in words), str(error.value)
    assert "\n" not in str(error.value)
    assert not os.path.exists(str(tmp_path / "out")) or os.listdir(str(tmp_path / "out")) == []


def test_gbk_fails_clearly_and_is_read_with_the_flag(toy_vocab, tmp_path):
    path = tmp_path / "gbk.txt"
    path.write_bytes("\n".join(TOY_SENTENCES[:3]).encode("gb18030"))
    with pytest.raises(cli.UserError, match="gbk.txt, line 1, byte 1:.*--input_encoding"):
        create(toy_vocab, path, tmp_path / "tf.tfrecord")
    gbk = create(toy_vocab, path, tmp_path / "tf.tfrecord", input_encoding="gb18030")
    text = write_text(tmp_path / "utf8.txt", "\n".join(TOY_SENTENCES[:3]))
    utf8 = create(toy_vocab, text, tmp_path / "tf_8.tfrecord")
    assert examples(gbk) == examples(utf8)


def test_odd_lines_do_not_split_a_document(toy_vocab, tmp_path, caplog):
    odd = ["\u200b\u200d", "\u200b\u3000", "\x00", "天气\ufeff预报\x00说", "　　新的桥　　"]
    text = write_text(tmp_path / "a.txt", "渔港很热闹。\n" + "\n".join(odd) + "\n老师让大家。")
    found = examples(create(toy_vocab, text, tmp_path / "tf.tfrecord", short_seq_prob=0))
    wanted = sum(segmented_sentences(toy_vocab, ["渔港很热闹。天气预报说新的桥老师让大家。"]), [])
    for example in found:
        first, second = restored(example)
        halves = [first[1:-1], second[:-1]]
        if example["next_sentence_labels"] == [1]:
            halves.reverse()
        assert halves[0] + halves[1] == wanted
    assert "lines without text: 3" in caplog.text


def test_a_line_of_a_megabyte_is_cut_and_counted(toy_vocab, tmp_path, caplog):
    line = "今年的产量比去年高，" * 20000 + "的" * 100000 + "a" * 100000
    text = write_text(tmp_path / "a.txt", "渔港。\n" + line + "\n热闹。")
    found = examples(create(toy_vocab, text, tmp_path / "tf.tfrecord", dupe_factor=1))
    assert len(found) > 4500
    assert "100.00 % of the characters are in an instance" in caplog.text
    assert "sentences longer than a half, cut where needed: 1" in caplog.text


def test_the_report_counts_everything(toy_vocab, toy_corpus, tmp_path, caplog):
    output = create(toy_vocab, toy_corpus, tmp_path / "tf.tfrecord", max_seq_length=40)
    found = examples(output)
    with open(str(tmp_path / "tf.manifest.json"), encoding="utf-8") as stream:
        totals = json.load(stream)["totals"]
    places = 40 * len(found)
    used = sum(sum(example["input_mask"]) for example in found)
    assert totals["instances"] == len(found) and totals["documents"] == 8
    assert totals["sentences"] == 48 and totals["padding"] == places - used
    assert totals["swapped"] == sum(example["next_sentence_labels"][0] for example in found)
    assert totals["masked tokens"] == sum(sum(e["masked_lm_weights"]) for e in found)
    assert "8 documents, 48 sentences" in caplog.text
    assert "{:.1f} % of the places are padding".format(100.0 * totals["padding"] / places) \
        in caplog.text


def test_real_text_reaches_instances(shared_data, tmp_path, caplog):
    vocab = os.path.join(os.path.dirname(create_pretraining_data.__file__), "albert_config",
                         "vocab.txt")
    if not os.path.isfile(vocab):
        pytest.skip("needs albert_config/vocab.txt, which setup.sh fetches")
    create(vocab, os.path.join(shared_data, "clue_corpus_small"), tmp_path / "tf.tfrecord",
           dupe_factor=1, max_seq_length=128, max_predictions_per_seq=20)
    with open(str(tmp_path / "tf.manifest.json"), encoding="utf-8") as stream:
        totals = json.load(stream)["totals"]
    assert totals["characters in instances"] >= 0.99 * totals["characters"]
    skipped = sum(count for name, count in totals.items() if name.startswith("characters skipped"))
    assert totals["characters"] == totals["characters in instances"] + skipped
    assert abs(totals["swapped"] / totals["instances"] - 0.5) < 0.02


def test_packed_files_folders_and_gzip_output(toy_vocab, toy_corpus, tmp_path):
    plain = create(toy_vocab, toy_corpus, tmp_path / "tf_a.tfrecord")
    os.mkdir(str(tmp_path / "texts"))
    with open(toy_corpus, "rb") as stream, gzip.open(str(tmp_path / "texts" / "t.gz"), "wb") as out:
        out.write(stream.read())
    packed = create(toy_vocab, tmp_path / "texts", tmp_path / "tf_b.tfrecord", compress=True)
    assert list(records.read_records(plain)) == list(records.read_records(packed))
    assert os.path.getsize(packed) < 0.5 * os.path.getsize(plain)
    again = create(toy_vocab, tmp_path / "texts", tmp_path / "tf_c.tfrecord", compress=True)
    with open(packed, "rb") as one, open(again, "rb") as other:
        assert one.read() == other.read()


def test_dynamic_records_hold_the_unmasked_instances(toy_vocab, toy_corpus, tmp_path):
    static = create(toy_vocab, toy_corpus, tmp_path / "tf_s.tfrecord", dupe_factor=1)
    dynamic = create(toy_vocab, toy_corpus, tmp_path / "tf_d.tfrecord", masking="dynamic")
    wanted, found = [], []
    for example in examples(static):
        first, second = restored(example)
        wanted.append((first + second, len(first), example["next_sentence_labels"]))
    for example in examples(dynamic):
        words = np.frombuffer(example["token_ids"][0], dtype="<u2")
        assert words[[0, 1, -1]].min() >= records.WORD_START_BIT
        found.append(((words & 32767).tolist(), example["segment_b_start"][0],
                      example["next_sentence_labels"]))
    assert found == wanted


def test_large_vocabularies_are_refused_for_dynamic_records(tmp_path, toy_corpus):
    tokens = list(tokenization.SPECIAL_TOKENS) + ["t{}".format(n) for n in range(32764)]
    vocab = write_text(tmp_path / "vocab.txt", "\n".join(tokens))
    with pytest.raises(cli.UserError, match="--masking=dynamic.*32769"):
        create(vocab, toy_corpus, tmp_path / "tf.tfrecord", masking="dynamic")


def test_other_languages_need_no_jieba(toy_vocab, tmp_path, monkeypatch):
    monkeypatch.setattr(jieba, "lcut", None)
    text = write_text(tmp_path / "a.txt", "abc de, fgh.\nijk lm no.\n\nxy z ab.\nabc 12 34.")
    found = examples(create(toy_vocab, text, tmp_path / "tf.tfrecord", non_chinese=True))
    tokenizer = tokenization.FullTokenizer(toy_vocab)
    assert len(found) == 20
    inner = {tokenizer.vocab["##b"], tokenizer.vocab["##c"]}
    for example in found:
        masked = {p for p, w in zip(example["masked_lm_positions"], example["masked_lm_weights"])
                  if w}
        ids = sum(restored(example), [])
        for position, token in enumerate(ids):
            if token in inner:
                assert (position in masked) == (position - 1 in masked)


def test_continuation_targets_reach_the_records(toy_vocab, toy_corpus, tmp_path):
    vocab = tokenization.load_vocab(toy_vocab)
    helpers = {index for token, index in vocab.items()
               if token.startswith("##") and tokenization.is_cjk(token[2])}
    for on in (True, False):
        found = examples(create(toy_vocab, toy_corpus, tmp_path / "tf{}.tfrecord".format(on),
                                continuation_targets=on))
        targets = collections.Counter(target in helpers for example in found
                                      for target in example["masked_lm_ids"])
        assert (targets[True] > 100) == on


def test_examples_are_shown_on_request(toy_vocab, toy_corpus, tmp_path, capsys):
    create(toy_vocab, toy_corpus, tmp_path / "tf.tfrecord", show_examples=2)
    shown = capsys.readouterr().out
    assert shown.count("[CLS]|") == 2 and shown.count("[SEP]") == 4 and "[MASK]→" in shown


def test_default_number_of_shards_follows_the_text():
    number = create_pretraining_data.default_num_shards
    assert [number(size << 20, 10) for size in (0, 1, 2, 3, 20, 64, 1024, 2048)] == [
        1, 1, 1, 2, 10, 32, 32, 64]
    assert number(2048 << 20, 40) == 256 and number(2048 << 20, 1) == 64


def test_flags_say_why_their_default_is_what_it_is():
    values = flags.FlagValues()
    create_pretraining_data.define_flags(values)
    values(["create"])
    defaults = dict(do_lower_case=True, do_whole_word_mask=True, max_seq_length=512,
                    max_predictions_per_seq=76, random_seed=12345, dupe_factor=10,
                    masked_lm_prob=0.15, short_seq_prob=0.1, non_chinese=False, ngram=1,
                    input_encoding="utf-8", continuation_targets=False, masking="static",
                    vocab_file="./albert_config/vocab.txt", segmenter="jieba")
    for name, value in defaults.items():
        assert getattr(values, name) == value
        assert "Default: " in values[name].help


@pytest.mark.parametrize("seed", range(3))
def test_documents_in_any_number_of_shards_give_the_same_pairs(toy_vocab, toy_corpus, tmp_path,
                                                               seed):
    """Only the order and the masks depend on the number of shards."""
    def instances(num_shards):
        create(toy_vocab, toy_corpus, tmp_path / "tf{}.tfrecord".format(num_shards),
               num_shards=num_shards, random_seed=seed, masking="dynamic", dupe_factor=3)
        names = [name for name in os.listdir(str(tmp_path)) if name.endswith("tfrecord")
                 and name.startswith("tf{}".format(num_shards))]
        return sorted(record for name in names for record in
                      records.read_records(os.path.join(str(tmp_path), name)))

    assert instances(1) == instances(random.Random(seed).randint(2, 5))


def test_a_shard_without_instances_has_no_file(toy_vocab, toy_corpus, tmp_path, caplog):
    output = str(tmp_path / "tf.tfrecord")
    for said in ("", "30 of 30 shards are there already"):
        create(toy_vocab, toy_corpus, output, num_shards=30)
        names = [name for name in os.listdir(str(tmp_path)) if name.endswith("tfrecord")]
        assert 3 <= len(names) <= 8
        assert all(examples(tmp_path / name) for name in names)
        assert "{} of 30 shards hold no instance".format(30 - len(names)) in caplog.text
        assert said in caplog.text


def test_an_output_that_cannot_be_written_fails_clearly(toy_vocab, toy_corpus, tmp_path):
    write_text(tmp_path / "file", "x")
    with pytest.raises(cli.UserError, match="--output_file=.*file"):
        create(toy_vocab, toy_corpus, tmp_path / "file" / "tf.tfrecord")


@pytest.mark.parametrize("name", ["tf.manifest.json", ".tf.progress.json"])
@pytest.mark.parametrize("content", ["{}", "[]"])
def test_notes_of_something_else_are_refused_or_replaced(toy_vocab, tmp_path, name, content):
    text = write_text(tmp_path / "a.txt", "\n".join(TOY_SENTENCES))
    write_text(tmp_path / name, content)
    with pytest.raises(cli.UserError, match=name + " is damaged: .*; --overwrite replaces it"):
        create(toy_vocab, text, tmp_path / "tf.tfrecord")
    assert examples(create(toy_vocab, text, tmp_path / "tf.tfrecord", overwrite=True))
    assert sorted(os.listdir(str(tmp_path))) == ["a.txt", "tf.manifest.json", "tf.tfrecord"]


def test_other_settings_are_refused_before_the_text_is_read(toy_vocab, tmp_path, monkeypatch):
    text = write_text(tmp_path / "a.txt", "\n".join(TOY_SENTENCES))
    create(toy_vocab, text, tmp_path / "tf.tfrecord")
    monkeypatch.setattr(create_pretraining_data, "index_spans", None)  # fails when it is called
    with pytest.raises(cli.UserError, match="settings.dupe_factor was .*, now 3; --overwrite"):
        create(toy_vocab, text, tmp_path / "tf.tfrecord", dupe_factor=3)


def test_a_folder_is_read_with_its_folders(toy_vocab, tmp_path, caplog):
    caplog.set_level("INFO")
    for name in ("体育/2.txt", "体育/1.txt", "财经/a/3.txt", "4.txt", ".git/5.txt", "财经/.6.txt"):
        os.makedirs(os.path.dirname(str(tmp_path / "in" / name)), exist_ok=True)
        write_text(tmp_path / "in" / name, "\n".join(TOY_SENTENCES))
    create(toy_vocab, tmp_path / "in", tmp_path / "tf.tfrecord", dupe_factor=1)
    with open(str(tmp_path / "tf.manifest.json"), encoding="utf-8") as stream:
        made = json.load(stream)
    assert made["input"]["files"] == ["4.txt", "1.txt", "2.txt", "3.txt"]
    assert made["totals"]["documents"] == 4
    assert "4 files of text in 3 folders" in caplog.text


def test_a_pipe_is_refused(toy_vocab, tmp_path):
    os.mkfifo(str(tmp_path / "fifo"))
    with pytest.raises(cli.UserError, match="--input_file: .*fifo is a pipe or device"):
        create(toy_vocab, tmp_path / "fifo", tmp_path / "out" / "tf.tfrecord")


def test_a_second_run_on_an_output_is_refused(toy_vocab, toy_corpus, tmp_path):
    output = str(tmp_path / "tf.tfrecord")
    for held, refused, beside in (("", ("", "1:2"), ()), ("-0-1", ("", "0:1"), ("1:2",))):
        with create_pretraining_data.only_run(output, held):
            for shard_range in refused:
                with pytest.raises(cli.UserError, match="--output_file .* by another run, process"):
                    create(toy_vocab, toy_corpus, output, num_shards=2, shard_range=shard_range)
            create(toy_vocab, toy_corpus, tmp_path / "other.tfrecord")
            for shard_range in beside:
                create(toy_vocab, toy_corpus, output, num_shards=2, shard_range=shard_range)
    create(toy_vocab, toy_corpus, output, num_shards=2)
    assert not [name for name in os.listdir(str(tmp_path)) if name.startswith(".")]


def test_own_words_are_masked_whole_and_noted(toy_vocab, tmp_path):
    text = write_text(tmp_path / "a.txt", "\n".join(["渔港的新桥很热闹", "老师让大家写短文"] * 3))
    words = write_text(tmp_path / "words.txt", "\ufeff港的新桥\n\n让大 5000000 n\r\n")
    output = tmp_path / "tf.tfrecord"
    for masking in ("static", "dynamic"):
        create(toy_vocab, text, output, user_dict=words, masking=masking, overwrite=True)
        found = examples(output)
    vocab, seen = tokenization.load_vocab(toy_vocab), collections.Counter()
    for example in found:
        tokens = np.frombuffer(example["token_ids"][0], "<u2")
        starts, ids = tokens >> 15, (tokens & 32767).tolist()
        for word in ("港的新桥", "让大"):
            for place in [place for place in range(len(ids)) if ids[place:place + len(word)] == [
                    vocab[char] for char in word]]:
                assert starts[place:place + len(word)].tolist() == [1] + [0] * (len(word) - 1)
                seen[word] += 1
    assert len(seen) == 2
    write_text(words, "港的新桥\n")
    for changed in (words, ""):
        with pytest.raises(cli.UserError, match="settings.user_dict was .*, now .*; --overwrite"):
            create(toy_vocab, text, output, user_dict=changed, masking="dynamic")


@pytest.mark.parametrize("content, more, words", [
    ("渔港\n深度 学习方法 5\n", {}, ["line 2", "深度 学习方法"]), ("渔港 0", {}, ["line 1"]),
    ("\n \n", {}, ["holds no word"]), ("渔港", {"segmenter": "rjieba"}, ["rjieba"]),
    ("渔港", {"non_chinese": True}, ["--non_chinese"]), (None, {}, ["No such file"])])
def test_own_words_are_checked(toy_vocab, toy_corpus, tmp_path, content, more, words):
    path = str(tmp_path / "words.txt")
    if content:
        write_text(path, content)
    with pytest.raises(cli.UserError) as error:
        create(toy_vocab, toy_corpus, tmp_path / "out" / "tf.tfrecord", user_dict=path, **more)
    assert all(word in str(error.value) for word in ["--user_dict"] + words), str(error.value)
    assert not os.path.exists(str(tmp_path / "out"))
