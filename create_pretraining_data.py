"""Text to pre-training data: masked language model and sentence-order prediction.

In: text, one sentence a line, blank lines between documents.  Out: TFRecords and a manifest.

    python create_pretraining_data.py --input_file='corpus/*.txt' --output_file=data/tf_x.tfrecord

This file holds the flags, the order of the work and the closing report; what happens to the text
is in shards.py and the modules it names.  No TensorFlow is imported.
"""

import collections
import os
import shutil
import sys
import time

from absl import flags, logging

import cli
import corpus
import manifest
import parallel
import records
import shards
import tokenization

SHARD_BYTES = 32 << 20  # text of one shard: about 200 MB of memory for its worker at dupe_factor 10
SMALL_SHARD_BYTES = 2 << 20
SMALL_SHARDS = 32  # a corpus up to so many small shards gets small ones, to keep all cores busy


def define_flags(flag_values):
    """Defines the flags of data creation."""
    _define_input_flags(flag_values)
    _define_instance_flags(flag_values)
    _define_masking_flags(flag_values)
    _define_run_flags(flag_values)


def _define_input_flags(flag_values):
    flags.DEFINE_string("input_file", None, "Text: files, patterns and directories with commas "
                        "between them; .gz and .xz are unpacked.", flag_values=flag_values)
    flags.DEFINE_string("output_file", None, "TFRecord file; with several shards the name gets "
                        "-00000-of-00016 before .tfrecord.", flag_values=flag_values)
    flags.DEFINE_string("vocab_file", "./albert_config/vocab.txt", "Vocabulary, one token a line; "
                        "the default is where setup.sh puts it.", flag_values=flag_values)
    flags.DEFINE_bool("do_lower_case", True, "Lower case without accents: the Chinese vocabulary "
                      "has next to no capitals.", flag_values=flag_values)
    flags.DEFINE_string("input_encoding", "utf-8", "Encoding of the text, for example gb18030.",
                        flag_values=flag_values)
    flags.DEFINE_bool("non_chinese", False, "Words are the ## pieces between spaces, without "
                      "jieba; off, for this is a Chinese model.", flag_values=flag_values)
    flags.DEFINE_enum("segmenter", "jieba", ["jieba", "rjieba"], "Who cuts the words. rjieba is "
                      "about ten times faster, but cuts 1-2 % of the sentences differently, so "
                      "it is not the default.", flag_values=flag_values)


def _define_instance_flags(flag_values):
    flags.DEFINE_integer("max_seq_length", 512, "Tokens of an instance; the default is the "
                         "models' limit.", lower_bound=8, flag_values=flag_values)
    flags.DEFINE_integer("dupe_factor", 10, "Times each document is used, with other pairs and "
                         "masks; with --masking=dynamic 1 unless given, since the masks are made "
                         "anew in training.", lower_bound=1, flag_values=flag_values)
    flags.DEFINE_float("short_seq_prob", 0.1, "Chance of a sequence with a random shorter length, "
                       "because later tasks have short texts.", lower_bound=0.0, upper_bound=1.0,
                       flag_values=flag_values)
    flags.DEFINE_integer("random_seed", 12345, "Seed of all randomness; the same seed gives the "
                         "same bytes, for any number of workers.", flag_values=flag_values)


def _define_masking_flags(flag_values):
    flags.DEFINE_integer("max_predictions_per_seq", 76, "Masked tokens of an instance at most; "
                         "the default is 15 % of 512.", lower_bound=1, flag_values=flag_values)
    flags.DEFINE_float("masked_lm_prob", 0.15, "Share of the tokens to predict, as in BERT.",
                       lower_bound=0.0, upper_bound=1.0, flag_values=flag_values)
    flags.DEFINE_bool("do_whole_word_mask", True, "Mask all characters of a word together. On: "
                      "one character of a word is too easy to guess from the others.",
                      flag_values=flag_values)
    flags.DEFINE_integer("ngram", 1, "Mask runs of 1 to this many words, n words with a chance "
                         "proportional to 1/n. 1, like the public Chinese models; the ALBERT "
                         "paper has 3.", lower_bound=1, flag_values=flag_values)
    flags.DEFINE_bool("continuation_targets", False, "Targets inside a word are the ## forms of "
                      "the characters. Only to go on from a public albert_zh checkpoint, whose "
                      "head was trained so.", flag_values=flag_values)
    flags.DEFINE_enum("masking", "static", ["static", "dynamic"], "static: masks stand in the "
                      "records, which every BERT reader takes. dynamic: run_pretraining.py masks "
                      "anew each time; the files are 1/40 of the size.", flag_values=flag_values)


def _define_run_flags(flag_values):
    flags.DEFINE_integer("num_shards", 0, "Output files; 0 = by the size of the text: one for "
                         "each 2 MB up to 32 files, then one for each 32 MB.", lower_bound=0,
                         flag_values=flag_values)
    flags.DEFINE_string("shard_range", None, "first:end, make only these of the shards, here; "
                        "the rest on other machines.", flag_values=flag_values)
    flags.DEFINE_integer("num_workers", 0, "Processes; 0 = one for each core.", lower_bound=0,
                         flag_values=flag_values)
    flags.DEFINE_bool("compress", False, "Write GZIP TFRecords, a quarter of the size; off, since "
                      "other readers want to be told.", flag_values=flag_values)
    flags.DEFINE_bool("overwrite", False, "Replace an output made with other settings.",
                      flag_values=flag_values)
    flags.DEFINE_integer("show_examples", 0, "Print so many instances.", lower_bound=0,
                         flag_values=flag_values)


def main(flag_values):
    """Makes the records that the flags ask for."""
    logging.set_verbosity(logging.INFO)
    cli.require_flags(flag_values, ("input_file", "output_file", "vocab_file"))
    corpus.check_encoding(flag_values.input_encoding)
    paths = cli.match_files(flag_values.input_file, "input_file")
    corpus.check_files(paths)
    tokenization.load_vocab(flag_values.vocab_file)
    folder = os.path.dirname(flag_values.output_file)
    if folder:
        os.makedirs(folder, exist_ok=True)
    work = manifest.hidden_path(flag_values.output_file, _range_label(flag_values) + ".work")
    shutil.rmtree(work, ignore_errors=True)
    os.mkdir(work)
    try:
        create(flag_values, paths, work)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def create(flag_values, paths, work):
    """All of the work on matched files, with a folder for temporary files."""
    started = time.time()
    plain = corpus.unpack(paths, work)
    settings = settings_of(flag_values, sum(map(os.path.getsize, plain)))
    chosen = parse_range(flag_values.shard_range, settings.num_shards)
    workers = flag_values.num_workers or parallel.usable_cores()
    spans = corpus.make_spans(plain)
    num_documents, checksums = index(corpus.Indexer(
        work, paths, settings.input_encoding, settings.random_seed, settings.num_shards),
        spans, workers)
    if not num_documents:
        raise cli.UserError("--input_file: no text in {}: blank lines only".format(
            flag_values.input_file))
    maker = shards.ShardMaker(settings, flag_values.vocab_file, (work, plain, len(spans)))
    progress = manifest.Progress(
        flag_values.output_file, identity(settings, maker, paths, plain, checksums),
        flag_values.overwrite, _range_label(flag_values))
    make_shards(maker, progress, chosen, workers, flag_values.show_examples)
    totals = collections.Counter()
    for shard in chosen:
        totals.update(progress.shards[shard])
    check_totals(totals, progress, chosen)
    progress.finish({"totals": totals})
    report(totals, progress, chosen, time.time() - started)


def settings_of(flag_values, num_bytes):
    """shards.Settings from the flags and the size of the text.

    Raises:
      UserError: flags that do not go together.
    """
    values = {name: getattr(flag_values, name) for name in shards.Settings._fields}
    if not 0 < values["masked_lm_prob"] < 1:
        raise cli.UserError("--masked_lm_prob={} is not between 0 and 1".format(
            values["masked_lm_prob"]))
    if values["masking"] == "dynamic" and not flag_values["dupe_factor"].present:
        values["dupe_factor"] = 1
    if not values["num_shards"]:
        values["num_shards"] = default_num_shards(num_bytes, values["dupe_factor"])
    elif num_bytes > 2 * SHARD_BYTES * values["num_shards"]:
        logging.warning("--num_shards=%d makes shards of %d MB of text; a worker needs about 5 "
                        "times that in memory", values["num_shards"],
                        num_bytes // values["num_shards"] >> 20)
    if not values["non_chinese"]:
        values["segmenter"] = package_version(values["segmenter"])
    return shards.Settings(**values)


def default_num_shards(num_bytes, dupe_factor):
    """Small shards for a small corpus, else shards that fit the memory bound."""
    small = min(-(-num_bytes // SMALL_SHARD_BYTES), SMALL_SHARDS)
    large = -(-num_bytes * max(dupe_factor, 10) // (10 * SHARD_BYTES))
    return max(small, large, 1)


def package_version(name):
    """"jieba-0.42.1": other versions may cut other words."""
    module = __import__(name)
    return "{}-{}".format(name, getattr(module, "__version__", "unknown"))


def parse_range(text, num_shards):
    """range of the shards that "first:end" means; all of them for None."""
    if not text:
        return range(num_shards)
    first, _, end = text.partition(":")
    if not (first.isdigit() and end.isdigit() and int(first) < int(end) <= num_shards):
        raise cli.UserError("--shard_range={!r}: wanted first:end with 0 <= first < end <= "
                            "{} shards".format(text, num_shards))
    return range(int(first), int(end))


def _range_label(flag_values):
    return "-" + flag_values.shard_range.replace(":", "-") if flag_values.shard_range else ""


def index(indexer, spans, workers):
    """(number of documents, checksums by span) of the first pass over the text."""
    results = dict((number, result) for (number, _), result in
                   parallel.run_jobs(indexer, list(enumerate(spans)), workers))
    ordered = [results[number] for number in sorted(results)]
    return sum(count for count, _ in ordered), [checksum for _, checksum in ordered]


def identity(settings, maker, paths, plain, checksums):
    """dict of everything that the bytes of the records depend on."""
    return {
        "kind": settings.masking,
        "settings": settings._asdict(),
        "vocab": manifest.vocabulary_entry(maker.vocab_file, maker.tables,
                                           settings.continuation_targets),
        "input": {"files": [os.path.basename(path) for path in paths],
                  "bytes": sum(map(os.path.getsize, plain)),
                  "checksum": manifest.text_hash(str(checksums))}}


def make_shards(maker, progress, chosen, workers, num_shown):
    """Makes those of the chosen shards that are not there yet; returns CPU seconds by stage."""
    missing = [shard for shard in chosen if shard not in progress.shards]
    if len(missing) < len(chosen):
        logging.info("%d of %d shards are there already, made with the same settings",
                     len(chosen) - len(missing), len(chosen))
    seconds = collections.Counter()
    if not missing:
        return seconds
    progress.begin()
    for shard in missing:
        records.remove_temporaries(progress.shard_path(shard))
    jobs = [(shard, progress.shard_path(shard), num_shown if shard == missing[0] else 0)
            for shard in missing]
    watch = parallel.watch(len(jobs), "shards")
    for (shard, _, _), (counts, stage_seconds, shown) in parallel.run_jobs(maker, jobs, workers):
        progress.add(shard, counts)
        seconds.update(stage_seconds)
        for text in shown:
            sys.stdout.write(text + "\n\n")
        watch()
    return seconds


def check_totals(totals, progress, chosen):
    """Warns of text that looks wrong; raises UserError when there is no instance at all."""
    if totals["documents of one line"] > 0.9 * totals["documents"]:
        logging.warning("%d of %d documents hold one sentence: is there a blank line after every "
                        "sentence? Blank lines belong between documents only",
                        totals["documents of one line"], totals["documents"])
    if not totals["instances"] and len(chosen) == progress.num_shards:
        progress.discard()
        raise cli.UserError("no instance: none of {} documents has two sentences".format(
            totals["documents"]))


def report(totals, progress, chosen, seconds):
    """Logs the closing report."""
    share = {name: 100.0 * totals[part] / max(totals[whole], 1) for name, part, whole in (
        ("swapped", "swapped", "instances"), ("unknown", "unknown tokens", "tokens"),
        ("padding", "padding", "places"), ("reached", "characters in instances", "characters"))}
    lines = [
        "{documents} documents, {sentences} sentences, {characters} characters".format(**totals),
        "{instances} instances, {swapped:.1f} % swapped".format(
            instances=totals["instances"], swapped=share["swapped"]),
        "{unknown:.2f} % of the tokens are [UNK], {padding:.1f} % of the places are padding".format(
            **share),
        "{reached:.2f} % of the characters are in an instance".format(**share)]
    lines += ["{}: {}".format(name, totals[name]) for name in sorted(totals)
              if totals[name] and ("skipped" in name or "cut" in name or "without" in name)]
    for line in lines:
        logging.info("%s", line)
    first, last = progress.shard_path(chosen[0]), progress.shard_path(chosen[-1])
    logging.info("wrote %s in %.1f s", first if first == last else first + " … " + last, seconds)


if __name__ == "__main__":
    cli.run(main, define_flags)
