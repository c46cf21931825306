"""What stands beside the records: settings, vocabulary, counts; and what a killed run had done.

In and out: data/tf_x.manifest.json, written when all shards are there. While they are being made,
the hidden data/.tf_x.progress.json tells that a run with these settings was begun, and a small
data/.tf_x-00003.shard.json of each finished shard holds its counts, so that several machines never
write to one file.  No TensorFlow.
"""

import collections
import contextlib
import hashlib
import io
import json
import os
import re

import cli

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


def difference_to(old, identity):
    """first_difference of a manifest and an identity, by the identity's keys."""
    return first_difference({key: old.get(key) for key in identity}, identity)


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


def write_manifest(output_file, identity, shards, system=None):
    """Writes the manifest: identity, counts by shard and in all, which are returned.

    Args:
      identity: dict, everything the bytes of the shards depend on.
      shards: {shard: counts}.
      system: cli.FileSystem of the output; default: see cli.file_system.
    """
    totals = collections.Counter()
    for counts in shards.values():
        totals.update(counts)
    cli.write_whole(manifest_path(output_file), manifest_text(
        dict(identity, shards=shards, totals=totals, format=FORMAT)), system)
    return totals


def manifest_text(value):
    """The text of a JSON file of this room, the same for equal values."""
    return json.dumps(value, ensure_ascii=False, indent=1, sort_keys=True) + "\n"


def refuse(output_file, difference):
    """Raises UserError for an output that is there and was made in another way."""
    raise cli.UserError("{} was made with other settings: {}{}".format(
        output_file, difference, OVERWRITE))


class Progress(object):
    """Which shards of an output exist, with their counts, for runs that go on.

    Args:
      output_file: str.
      label: str, keeps runs on different shards apart.
    """

    def __init__(self, output_file, label=""):
        self.output_file = output_file
        self.shards = {}  # shard -> counts
        self.identity, self.num_shards = None, 0
        self._begun = hidden_path(output_file, label + ".progress.json")

    def check(self, identity):
        """Raises UserError where an output that is there was made with other settings.

        For before the text is read: identity, see start, lacks its checksum.
        """
        for _, old in self._former(overwrite=False):
            old["input"].pop("checksum", None)
            difference = difference_to(old, json.loads(json.dumps(identity)))
            if difference:
                refuse(self.output_file, difference)

    def _former(self, overwrite):
        """Yields (path, content) of the manifest and of what a run that was begun has left."""
        for path in (manifest_path(self.output_file), self._begun):
            old = read_json(path)
            if overwrite and old is not None and not is_manifest(old):
                _remove(path)
            elif old is not None:
                require_manifest(path, old, OVERWRITE)
                yield path, old

    def start(self, identity, overwrite, chosen):
        """Finds the shards that are there.

        Args:
          identity: dict, everything the bytes of the shards depend on.
          overwrite: bool, throw away what other settings made.
          chosen: the shards this run is to make; others are left to other machines.
        Raises:
          UserError: the output was made with other settings and overwrite is off.
        """
        # Through JSON, so that both sides of a comparison know lists only.
        self.identity = json.loads(json.dumps(identity))
        self.num_shards = self.identity["settings"]["num_shards"]
        for path, old in self._former(overwrite):
            difference = difference_to(old, self.identity)
            if difference is None:
                self.shards.update({int(shard): counts for shard, counts in old["shards"].items()
                                    if self._is_there(int(shard), counts)})
            elif overwrite:
                count = old["settings"]["num_shards"]
                for shard in range(count):
                    _remove(shard_path(self.output_file, shard, count))
                    _remove(self._note_path(shard))
                _remove(path)
            else:
                refuse(self.output_file, difference)
        for shard in chosen:
            self._take_over(shard, overwrite)

    def _take_over(self, shard, overwrite):
        """Adds a shard that is noted as finished; refuses a file that nothing is known of."""
        counts = self._noted(shard)
        if counts:
            self.shards[shard] = counts
        path = self.shard_path(shard)
        if shard in self.shards or not os.path.exists(path) or os.path.exists(self._begun):
            return
        if not overwrite:
            raise cli.UserError("{} exists and no manifest says how it was made{}".format(
                path, OVERWRITE))
        _remove(path)

    def _is_there(self, shard, counts):
        return not counts["instances"] or os.path.exists(self.shard_path(shard))

    def _noted(self, shard):
        """The counts of a shard that was finished by a run with these settings, or None."""
        note = read_json(self._note_path(shard))
        same = isinstance(note, dict) and note.get("identity") == self._digest()
        return note["counts"] if same and self._is_there(shard, note["counts"]) else None

    def _digest(self):
        return text_hash(manifest_text(self.identity))

    def _note_path(self, shard):
        return hidden_path(self.output_file, "-{:05d}.shard.json".format(shard))

    def shard_path(self, shard):
        return shard_path(self.output_file, shard, self.num_shards)

    def begin(self, missing):
        """Notes that a run on the missing shards is under way; clears up after killed ones."""
        for path in [self._begun, manifest_path(self.output_file)] + [
                path for shard in missing for path in (
                    self.shard_path(shard), self._note_path(shard))]:
            cli.remove_temporaries(path)
        cli.write_whole(self._begun, manifest_text(dict(self.identity, shards={})))

    def add(self, shard, counts):
        """Notes a finished shard."""
        self.shards[shard] = counts
        cli.write_whole(self._note_path(shard), manifest_text(
            {"identity": self._digest(), "counts": counts}))

    def finish(self):
        """Writes the manifest of all shards that are noted, by this or by other machines.

        Of several machines that end at once the last to read the notes sees them all. A manifest
        of some shards only never replaces one that is there.
        """
        noted = {shard: self.shards.get(shard) or self._noted(shard)
                 for shard in range(self.num_shards)}
        found = {shard: counts for shard, counts in noted.items() if counts}
        if len(found) == self.num_shards:
            write_manifest(self.output_file, self.identity, found)
            for shard in found:
                _remove(self._note_path(shard))
        else:
            write_manifest(self.output_file, self.identity, found,
                           cli.LOCAL._replace(rename=_move_unless_there))
        _remove(self._begun)

    def discard(self):
        """Removes the shards and the notes of this run."""
        for shard in self.shards:
            _remove(self.shard_path(shard))
            _remove(self._note_path(shard))
        _remove(self._begun)


def _move_unless_there(source, target):
    """Renames a file, or removes it where the target is there already."""
    try:
        os.link(source, target)
    except FileExistsError:
        pass
    except OSError:  # a file system without links
        if not os.path.exists(target):
            os.replace(source, target)
    _remove(source)


def _remove(path):
    """Removes a file, which another machine may have removed already."""
    with contextlib.suppress(FileNotFoundError):
        os.remove(path)
