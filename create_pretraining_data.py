"""Text to pre-training data: masked language model and sentence-order prediction.

In: text, one sentence a line, blank lines between documents.  Out: TFRecords and a manifest.

    python create_pretraining_data.py --input_file='corpus/*.txt' --output_file=data/tf_x.tfrecord

This file holds the flags, the order of the work and the closing report; what happens to the text
is in shards.py and the modules it names.  No TensorFlow is imported.
"""

import collections
import contextlib
import functools
import glob
import os
import shutil
import sys
import time

from absl import flags, logging

import cli
import tokenization
from pretraining_data import documents, manifest, records, segmentation, shards
from pretraining_data.workers import run_jobs, usable_cores, watch

SHARD_BYTES = 32 << 20  # text of one shard: about 200 MB of memory for its worker at dupe_factor 10
SMALL_SHARD_BYTES = 2 << 20
SMALL_SHARDS = 32  # a corpus up to so many small shards gets small ones, to keep all cores busy


def define_flags(flag_values):
    """Defines the flags of data creation."""
    define_input_flags(flag_values)
    define_instance_flags(flag_values)
    define_run_flags(flag_values)


def define_input_flags(flag_values):
    """Flags on the text."""
    string = functools.partial(flags.DEFINE_string, flag_values=flag_values)
    boolean = functools.partial(flags.DEFINE_bool, flag_values=flag_values)
    string("input_file", None, "Text: files, patterns in quotes and folders with all that is in "
           "them, by commas; .gz and .xz are unpacked. Required.")
    string("output_file", None, "TFRecord file; with several shards its name gets "
           "-00000-of-00016 before .tfrecord. Required.")
    string("vocab_file", "./albert_config/vocab.txt", "Vocabulary, one token a line. Default: "
           "where setup.sh puts it.")
    boolean("do_lower_case", True, "Lower case without accents. Default: on, for the Chinese "
            "vocabulary has next to no capitals.")
    string("input_encoding", "utf-8", "Encoding of the text, for example gb18030. Default: what "
           "nearly all corpora have.")
    boolean("non_chinese", False, "Words are the ## pieces between spaces, without jieba. "
            "Default: off, for this is a Chinese model.")
    flags.DEFINE_enum("segmenter", "jieba", ["jieba", "rjieba"], "Who cuts the words. Default: "
                      "jieba, as the public models had; rjieba is much faster, but cuts 1-2 % of "
                      "the sentences differently.", flag_values=flag_values)
    string("user_dict", None, "Own words for jieba, one a line, after a space its frequency if "
           "wanted, then its tag. Default: none, jieba's own dictionary.")


def define_instance_flags(flag_values):
    """Flags on pairs and masks."""
    integer = functools.partial(flags.DEFINE_integer, flag_values=flag_values)
    boolean = functools.partial(flags.DEFINE_bool, flag_values=flag_values)
    share = functools.partial(flags.DEFINE_float, lower_bound=0.0, upper_bound=1.0,
                              flag_values=flag_values)
    integer("max_seq_length", 512, "Tokens of an instance. Default: the models' limit.",
            lower_bound=8)
    integer("max_predictions_per_seq", 76, "Masked tokens of an instance at most. Default: 15 % "
            "of 512.", lower_bound=1)
    share("masked_lm_prob", 0.15, "Share of the tokens to predict. Default: BERT's.")
    boolean("do_whole_word_mask", True, "Mask all tokens of a word together. Default: on, since "
            "one character of a word is too easy to guess from the others.")
    integer("ngram", 1, "Mask runs of 1 to this many words, n words with a chance proportional to "
            "1/n. Default: 1, as the public Chinese models had; the ALBERT paper has 3.",
            lower_bound=1)
    boolean("continuation_targets", False, "The targets inside a word are the ## forms of the "
            "characters. Default: off; only to go on from a public albert_zh checkpoint, whose "
            "head was trained so.")
    flags.DEFINE_enum("masking", "static", ["static", "dynamic"], "static: the masks stand in the "
                      "records. dynamic: run_pretraining.py masks anew each time, files are 1/40 "
                      "of the size. Default: static, which every BERT reader takes.",
                      flag_values=flag_values)
    integer("dupe_factor", 10, "Times each document is used, with other pairs and masks. Default: "
            "BERT's 10; with --masking=dynamic 1, since the masks are made anew in training.",
            lower_bound=1)
    share("short_seq_prob", 0.1, "Chance of a sequence with a random shorter length. Default: "
          "BERT's, because later tasks have short texts.")
    integer("random_seed", 12345, "Seed of all randomness; the same seed gives the same bytes, "
            "for any number of workers. Default: BERT's.")


def define_run_flags(flag_values):
    """Flags on files, processes and messages."""
    integer = functools.partial(flags.DEFINE_integer, lower_bound=0, flag_values=flag_values)
    boolean = functools.partial(flags.DEFINE_bool, flag_values=flag_values)
    integer("num_shards", 0, "Output files. Default: 0 = by the size of the text, one for each "
            "2 MB up to 32 files, then one for each 32 MB, which bounds a worker's memory.")
    flags.DEFINE_string("shard_range", None, "first:end, make only these of the shards; other "
                        "machines make the rest. Default: all.", flag_values=flag_values)
    integer("num_workers", 0, "Processes. Default: 0 = one for each core.")
    boolean("compress", False, "Write GZIP TFRecords, a quarter of the size. Default: off, since "
            "many readers must be told.")
    boolean("overwrite", False, "Replace an output that was made with other settings. Default: "
            "off, refuse.")
    integer("show_examples", 0, "Print so many instances to look at. Default: none.")


def main(flag_values):
    """Makes the records that the flags ask for."""
    logging.set_verbosity(logging.INFO)
    cli.require_flags(flag_values, ("input_file", "output_file", "vocab_file"))
    run = cli.settings_of(flag_values)
    if run.masking == "dynamic" and not flag_values["dupe_factor"].present:
        run.dupe_factor = 1
    check_options(run)
    paths = text_files(run.input_file)
    label = range_label(run.shard_range)
    work = manifest.hidden_path(run.output_file, label + ".work")
    try:
        os.makedirs(os.path.dirname(run.output_file) or ".", exist_ok=True)
        with only_run(run.output_file, label):
            try:
                shutil.rmtree(work, ignore_errors=True)
                os.mkdir(work)
                create(run, paths, work)
            finally:
                shutil.rmtree(work, ignore_errors=True)
    except OSError as error:
        raise cli.UserError("--output_file={}: {}".format(run.output_file, error)) from error


@contextlib.contextmanager
def only_run(output_file, label):
    """Locks the output, or one range of its shards, while a `with` statement writes there.

    Runs on other ranges go on beside it, a run on all shards does not.
    """
    def locked(label, shared):
        return cli.sole_writer(output_file, "output_file",
                               manifest.hidden_path(output_file, label + cli.LOCK), shared)

    with locked("", bool(label)), locked(label, False) if label else contextlib.nullcontext():
        yield


def text_files(patterns):
    """The files of text that patterns match, those of a folder's folders too."""
    paths = cli.match_files(patterns, "input_file", functools.partial(glob.glob, recursive=True),
                            inside="**")
    documents.check_files(paths)
    folders = set(map(os.path.dirname, paths))
    logging.info("%d files of text in %d folders", len(paths), len(folders))
    return paths


def check_options(run):
    """Raises UserError for flags that make no sense, before any work."""
    documents.check_encoding(run.input_encoding)
    if not 0 < run.masked_lm_prob < 1:
        raise cli.UserError("--masked_lm_prob={} is not between 0 and 1".format(
            run.masked_lm_prob))
    if not 0 <= run.short_seq_prob <= 1:  # nan passes the flag's own bounds
        raise cli.UserError("--short_seq_prob={} is not from 0 to 1".format(run.short_seq_prob))
    if run.shard_range and not run.num_shards:
        raise cli.UserError("--shard_range={}: every machine must be given the same "
                            "--num_shards".format(run.shard_range))
    parse_range(run.shard_range, run.num_shards)
    if run.user_dict:
        if run.non_chinese or run.segmenter != "jieba":
            raise cli.UserError("--user_dict={}: only jieba takes own words, not --{}".format(
                run.user_dict, "non_chinese" if run.non_chinese else "segmenter=rjieba"))
        segmentation.read_user_dict(run.user_dict)
    vocab_size = len(tokenization.load_vocab(run.vocab_file))
    if run.masking == "dynamic" and vocab_size > records.WORD_START_BIT:
        raise cli.UserError("--masking=dynamic: at most {} tokens, {} has {}".format(
            records.WORD_START_BIT, run.vocab_file, vocab_size))


def create(run, paths, work):
    """All of the work on matched files.

    Args:
      run: the flags' values.
      paths: list of str, the text.
      work: folder for temporary files.
    """
    started = time.time()
    workers = run.num_workers or usable_cores()
    plain = documents.unpack(paths, work, workers)
    num_bytes = sum(map(os.path.getsize, plain))
    settings = shard_settings(run, num_bytes)
    chosen = parse_range(run.shard_range, settings.num_shards)
    spans = documents.make_spans(plain)
    maker = shards.ShardMaker(settings, run.vocab_file, (work, plain, len(spans)), run.user_dict)
    progress = manifest.Progress(run.output_file, range_label(run.shard_range))
    if not run.overwrite:
        progress.check(describe_output(maker, paths, num_bytes))
    num_documents, checksums = index_spans(documents.Indexer(
        work, paths, settings.input_encoding, settings.random_seed, settings.num_shards),
        spans, workers)
    if not num_documents:
        raise cli.UserError("--input_file: {} holds blank lines only".format(run.input_file))
    progress.start(describe_output(maker, paths, num_bytes, checksums), run.overwrite, chosen)
    make_shards(maker, progress, chosen, workers, run.show_examples)
    totals = collections.Counter()
    for shard in chosen:
        totals.update(progress.shards[shard])
    check_totals(totals, progress, chosen)
    progress.finish()
    closing_report(totals, progress, chosen, time.time() - started)


def shard_settings(run, num_bytes):
    """shards.Settings from the flags' values and the size of the text in bytes."""
    values = {name: getattr(run, name) for name in shards.Settings._fields}
    if not run.num_shards:
        values["num_shards"] = default_num_shards(num_bytes, run.dupe_factor)
    elif num_bytes > 2 * SHARD_BYTES * run.num_shards:
        logging.warning("--num_shards=%d makes shards of %d MB of text; a worker needs about 5 "
                        "times that in memory", run.num_shards, num_bytes // run.num_shards >> 20)
    if run.segmenter == "rjieba":
        logging.warning("--segmenter=rjieba cuts 1-2 % of the sentences unlike jieba")
    if not run.non_chinese:
        values["segmenter"] = segmentation.package_version(run.segmenter)
    values["user_dict"] = manifest.file_hash(run.user_dict) if run.user_dict else None
    return shards.Settings(**values)


def default_num_shards(num_bytes, dupe_factor):
    """Small shards for a small corpus, else shards that fit the memory bound."""
    small = min(-(-num_bytes // SMALL_SHARD_BYTES), SMALL_SHARDS)
    large = -(-num_bytes * max(dupe_factor, 10) // (10 * SHARD_BYTES))
    return max(small, large, 1)


def parse_range(text, num_shards):
    """range of the shards that "first:end" means; all of them for None."""
    if not text:
        return range(num_shards)
    first, _, end = text.partition(":")
    if not (first.isdigit() and end.isdigit() and int(first) < int(end) <= num_shards):
        raise cli.UserError("--shard_range={!r}: wanted first:end with 0 <= first < end <= "
                            "{} shards".format(text, num_shards))
    return range(int(first), int(end))


def range_label(text):
    """What keeps the temporary files of runs with another --shard_range apart."""
    return "-" + text.replace(":", "-") if text else ""


def index_spans(indexer, spans, workers):
    """(number of documents, checksums by span) of the first pass over the text."""
    results, counter = {}, watch(len(spans), "spans indexed")
    for (number, _), result in run_jobs(indexer, list(enumerate(spans)), workers):
        results[number] = result
        counter()
    ordered = [results[number] for number in sorted(results)]
    return sum(count for count, _ in ordered), [checksum for _, checksum in ordered]


def describe_output(maker, paths, num_bytes, checksums=None):
    """dict of everything that the bytes of the records depend on, the manifest's first part."""
    settings = maker.settings
    source = {"files": [os.path.basename(path) for path in paths], "bytes": num_bytes}
    if checksums is not None:
        source["checksum"] = manifest.text_hash(str(checksums))
    return {
        "kind": settings.masking,
        "settings": settings._asdict(),
        "vocab": manifest.vocabulary_entry(maker.vocab_file, maker.tables,
                                           settings.continuation_targets),
        "input": source}


def make_shards(maker, progress, chosen, workers, num_shown):
    """Makes those of the chosen shards that are not there yet."""
    missing = [shard for shard in chosen if shard not in progress.shards]
    if len(missing) < len(chosen):
        logging.info("%d of %d shards are there already, made with the same settings",
                     len(chosen) - len(missing), len(chosen))
    if not missing:
        return
    progress.begin(missing)
    maker.load()  # before the workers, which then need not load it again
    jobs = [(shard, progress.shard_path(shard), num_shown if shard == missing[0] else 0)
            for shard in missing]
    counter = watch(len(jobs), "shards")
    for (shard, _, _), (counts, shown) in run_jobs(maker, jobs, workers):
        progress.add(shard, counts)
        for text in shown:
            sys.stdout.write(text + "\n\n")
        counter()


def check_totals(totals, progress, chosen):
    """Warns of text that looks wrong; raises UserError when there is no instance at all."""
    if totals["documents of one line"] > 0.9 * totals["documents"]:
        logging.warning("%d of %d documents hold one sentence: is there a blank line after every "
                        "sentence? Blank lines belong between documents only",
                        totals["documents of one line"], totals["documents"])
    empty = sum(not progress.shards[shard]["instances"] for shard in chosen)
    if empty and totals["instances"]:
        logging.warning("%d of %d shards hold no instance and have no file: fewer --num_shards "
                        "would do", empty, len(chosen))
    if not totals["instances"] and len(chosen) == progress.num_shards:
        progress.discard()
        raise cli.UserError("no instance: none of {} documents has two sentences".format(
            totals["documents"]))


def closing_report(totals, progress, chosen, seconds):
    """Logs the closing report."""
    percent = {name: 100.0 * totals[part] / max(totals[whole], 1) for name, part, whole in (
        ("swapped", "swapped", "instances"), ("unknown", "unknown tokens", "tokens"),
        ("padding", "padding", "places"), ("reached", "characters in instances", "characters"))}
    lines = [
        "{documents} documents, {sentences} sentences, {characters} characters".format(**totals),
        "{instances} instances, {swapped:.1f} % swapped".format(
            instances=totals["instances"], swapped=percent["swapped"]),
        "{unknown:.2f} % of the tokens are [UNK], {padding:.1f} % of the places are padding".format(
            **percent),
        "{reached:.2f} % of the characters are in an instance".format(**percent)]
    lines += ["{}: {}".format(name, totals[name]) for name in sorted(totals)
              if totals[name] and ("skipped" in name or "cut" in name or "without" in name)]
    for line in lines:
        logging.info("%s", line)
    first, last = progress.shard_path(chosen[0]), progress.shard_path(chosen[-1])
    logging.info("%s: complete, in %.1f s", first if first == last else first + " … " + last,
                 seconds)


if __name__ == "__main__":
    cli.run(main, define_flags)
