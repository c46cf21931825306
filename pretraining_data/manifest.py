"""What stands beside the records: settings, vocabulary, counts; and what a killed run had done.

In and out: data/tf_x.manifest.json, written when all shards are there, and the hidden
data/.tf_x.progress.json while they are being made.  No TensorFlow.
"""

import collections
import hashlib
import io
import json
import os
import re

import cli
from pretraining_data import records

FORMAT = 1
OVERWRITE = "; --overwrite replaces it"


def output_stem(output_file):
    """Path without .tfrecord, the beginning of all names: data/tf_news."""
    suffix = ".tfrecord"
    return output_file[:-len(suffix)] if output_file.endswith(suffix) else output_file


def shard_path(output_file, shard, num_shards):
    """data/tf_news-00003-of-00016.tfrecord; a single shard has the name as it was given."""
    if num_shards == 1:
        return output_file
    return "{}-{:05d}-of-{:05d}.tfrecord".format(output_stem(output_file), shard, num_shards)


def hidden_path(output_file, ending):
    """A path beside the output whose name begins with a dot."""
    folder, name = os.path.split(output_stem(output_file))
    return os.path.join(folder, "." + name + ending)


def manifest_path(output_file):
    """data/tf_news.manifest.json."""
    return output_stem(output_file) + ".manifest.json"


def manifest_of(path):
    """The manifest that belongs to a TFRecord file, one of several shards or not."""
    return manifest_path(re.sub(r"-\d{5,}-of-\d{5,}(?=\.tfrecord$)", "", path))


def read_json(path):
    """The object in a JSON file, or None where there is no such file or it is damaged."""
    try:
        with io.open(path, encoding="utf-8") as stream:
            return json.load(stream)
    except (OSError, ValueError):
        return None


def is_manifest(value):
    """Whether what a JSON file held is a manifest, or the notes of a run under way."""
    try:
        lengths = [value["settings"][name] for name in (
            "num_shards", "max_seq_length", "max_predictions_per_seq")]
        counts = [shard["instances"] for shard in value["shards"].values()]
        return (all(isinstance(number, int) for number in
                    lengths + counts + [value["vocab"]["size"]] + list(map(int, value["shards"])))
                and isinstance(value["input"], dict))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        return False


def require_manifest(path, value, advice=""):
    """Raises UserError where the value that path held is not is_manifest."""
    if not is_manifest(value):
        raise cli.UserError("{} is damaged: it does not say how records were made{}".format(
            path, advice))


def write_json(path, value):
    """Writes a JSON file that is complete as soon as it is there."""
    temporary = records.temporary_name(path)
    with io.open(temporary, "w", encoding="utf-8", newline="\n") as stream:
        stream.write(json.dumps(value, ensure_ascii=False, indent=1, sort_keys=True) + "\n")
    os.replace(temporary, path)


def file_hash(path):
    """SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as stream:
        return hashlib.sha256(stream.read()).hexdigest()


def text_hash(text):
    """SHA-256 of a str, in hexadecimal."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def id_ranges(ids):
    """Sorted ids as a short list of [first, last]."""
    ranges = []
    for index in ids:
        if ranges and ranges[-1][1] == index - 1:
            ranges[-1][1] = index
        else:
            ranges.append([index, index])
    return ranges


def vocabulary_entry(vocab_file, tables, with_continuation):
    """What a reader that masks anew needs of the vocabulary: ids, ordinary ids, ## forms."""
    entry = {"sha256": file_hash(vocab_file), "size": tables.size, "cls": tables.cls,
             "sep": tables.sep, "mask": tables.mask, "unk": tables.unk,
             "ordinary": id_ranges(tables.ordinary.tolist())}
    if with_continuation:
        entry["continuation"] = [[index, helper] for index, helper
                                 in enumerate(tables.continuation.tolist()) if index != helper]
    return entry


def first_difference(old, new, path=""):
    """One line that names the first value in which two nested dicts differ, or None."""
    for key in sorted(set(old) | set(new)):
        before, now = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(now, dict):
            inner = first_difference(before, now, path + key + ".")
            if inner:
                return inner
        elif before != now:
            return "{}{} was {}, now {}".format(path, key, _shortly(before), _shortly(now))
    return None


def _shortly(value):
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


def notes_of(output_file, label=""):
    """Where an output's making is noted: its manifest, and the hidden file of a run under way."""
    return manifest_path(output_file), hidden_path(output_file, label + ".progress.json")


def difference_to(old, identity):
    """first_difference of a note and an identity, by the identity's keys."""
    return first_difference({key: old.get(key) for key in identity}, identity)


def refuse(output_file, difference):
    """Raises UserError for an output that is there and was made in another way."""
    raise cli.UserError("{} was made with other settings: {}{}".format(
        output_file, difference, OVERWRITE))


def check_identity(output_file, identity, label=""):
    """Raises UserError where an output that is there was made with other settings.

    For before the text is read: identity lacks its checksum.
    """
    for path in notes_of(output_file, label):
        old = read_json(path)
        if old is None:
            continue
        require_manifest(path, old, OVERWRITE)
        old["input"].pop("checksum", None)
        difference = difference_to(old, json.loads(json.dumps(identity)))
        if difference:
            refuse(output_file, difference)


class Progress(object):
    """Which shards of an output exist, with their counts, for runs that go on.

    Args:
      output_file: str.
      identity: dict, everything the bytes of the shards depend on.
      overwrite: bool, throw away what other settings made.
      label: str, keeps the notes of runs on different shards apart.
      chosen: the shards this run is to make, None for all; others are left to other machines.
    Raises:
      UserError: the output was made with other settings and overwrite is off.
    """

    def __init__(self, output_file, identity, overwrite, label="", chosen=None):
        self.output_file = output_file
        # Through JSON, so that both sides of a comparison know lists only.
        self.identity = json.loads(json.dumps(identity))
        self.num_shards = self.identity["settings"]["num_shards"]
        self.chosen = range(self.num_shards) if chosen is None else chosen
        self.shards = {}
        notes = notes_of(output_file, label)
        self._path = notes[-1]
        for path in notes:
            self._take_over(path, read_json(path), overwrite)
        self._refuse_strangers(overwrite)

    def _take_over(self, path, old, overwrite):
        if old is None:
            return
        if not overwrite:
            require_manifest(path, old, OVERWRITE)
        elif not is_manifest(old):
            _remove(path)
            return
        difference = difference_to(old, self.identity)
        if difference is None:
            self.shards.update(self._present(old))
        elif overwrite:
            count = old["settings"]["num_shards"]
            for shard in range(count):
                _remove(shard_path(self.output_file, shard, count))
            _remove(path)
        else:
            refuse(self.output_file, difference)

    def _present(self, old):
        """{shard: counts} of the noted shards whose files are there, or that have no instance."""
        return {int(shard): counts for shard, counts in old["shards"].items()
                if not counts["instances"] or os.path.exists(self.shard_path(int(shard)))}

    def _refuse_strangers(self, overwrite):
        for shard in self.chosen:
            path = self.shard_path(shard)
            if shard not in self.shards and os.path.exists(path) and not self._interrupted():
                if not overwrite:
                    raise cli.UserError("{} exists and no manifest says how it was made{}".format(
                        path, OVERWRITE))
                _remove(path)

    def _interrupted(self):
        """A run with these settings was begun, so that a shard not noted yet is its own."""
        return os.path.exists(self._path)

    def shard_path(self, shard):
        return shard_path(self.output_file, shard, self.num_shards)

    def begin(self, missing):
        """Notes that a run on the missing shards is under way; clears up after killed ones."""
        for path in [self._path, manifest_path(self.output_file)] + list(
                map(self.shard_path, missing)):
            records.remove_temporaries(path)
        self._note()

    def _note(self):
        write_json(self._path, dict(self.identity, shards=self.shards))

    def add(self, shard, counts):
        """Notes a finished shard."""
        self.shards[shard] = counts
        self._note()

    def finish(self):
        """Writes the manifest: identity, counts by shard and in all.

        Shards that other runs with the same settings have noted meanwhile stay in it.
        """
        old = read_json(manifest_path(self.output_file))
        if is_manifest(old) and not difference_to(old, self.identity):
            noted = self._present(old)
        else:
            noted = {}
        noted.update(self.shards)
        totals = collections.Counter()
        for counts in noted.values():
            totals.update(counts)
        write_json(manifest_path(self.output_file),
                   dict(self.identity, shards=noted, totals=totals, format=FORMAT))
        _remove(self._path)

    def discard(self):
        """Removes the shards and the notes of this run."""
        for shard in self.shards:
            _remove(self.shard_path(shard))
        _remove(self._path)


def _remove(path):
    if os.path.exists(path):
        os.remove(path)
