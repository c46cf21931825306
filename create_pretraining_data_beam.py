"""create_pretraining_data.py as an Apache Beam pipeline, for a Flink, Spark or Dataflow cluster.

In: text, as there, but not packed.  Out: the same shards, byte for byte, and a manifest.

    ./setup.sh --with=beam
    python create_pretraining_data_beam.py --input_file='corpus/*.txt' \\
      --output_file=data/tf_news.tfrecord --pipeline_options='--runner=DirectRunner'

Text and output may be on any file system that Beam knows (gs://, hdfs://, …). The workers of a
cluster need this folder on their PYTHONPATH, and the vocabulary at the path of --vocab_file, own
words at that of --user_dict.
"""

import importlib
import os

from absl import flags, logging

import cli
import create_pretraining_data
from pretraining_data import manifest, shards
from pretraining_data.documents import Document, make_spans, scan_documents, shard_of


def load_beam():
    """The package apache_beam, which is optional, or a UserError that says how to get it."""
    try:
        return importlib.import_module("apache_beam")
    except ImportError as error:
        raise cli.UserError("needs Apache Beam: ./setup.sh --with=beam ({})".format(
            error)) from error


def file_systems():
    """Beam's FileSystems: files on any file system it knows."""
    return load_beam().io.filesystems.FileSystems


def open_as_is(path, mode):
    """A file of any file system as bytes, mode "rb" or "wb", whatever the end of its name."""
    method = {"rb": file_systems().open, "wb": file_systems().create}[mode]
    return method(path, compression_type=load_beam().io.filesystem.CompressionTypes.UNCOMPRESSED)


BEAM_FILES = cli.FileSystem(
    open_as_is,
    lambda source, target: file_systems().rename([source], [target]),
    lambda path: file_systems().delete([path]))


def define_flags(flag_values):
    """Defines the flags: those of create_pretraining_data.py that mean something here."""
    create_pretraining_data.define_input_flags(flag_values)
    create_pretraining_data.define_instance_flags(flag_values)
    flags.DEFINE_integer("num_shards", 0, "Output files. Default: 0 = by the size of the text.",
                         lower_bound=0, flag_values=flag_values)
    flags.DEFINE_bool("compress", False, "Write GZIP TFRecords. Default: off, since many readers "
                      "must be told.", flag_values=flag_values)
    flags.DEFINE_string("pipeline_options", "", "Options of Beam and its runner, separated by "
                        "spaces. Default: none, the local runner.", flag_values=flag_values)
    flags.adopt_module_key_flags(create_pretraining_data, flag_values)


class ReadDocuments(object):
    """Piece of a file -> (shard, Document) of the documents that begin in it."""

    def __init__(self, settings):
        self.settings = settings

    def __call__(self, piece):
        encoding, seed = self.settings.input_encoding, self.settings.random_seed
        with open_as_is(piece.path, "rb") as stream, open_as_is(piece.path, "rb") as source:
            for offset, size, _ in scan_documents(stream, piece, encoding, piece.path):
                source.seek(offset)
                document = Document(piece.file, offset, source.read(size).decode(encoding))
                shard = shard_of(seed, [piece.file], [offset], self.settings.num_shards)
                yield int(shard[0]), document


class WriteShard(object):
    """(shard, its documents in any order) -> the file, and (shard, counts)."""

    def __init__(self, maker, output_file):
        self.maker = maker
        self.output_file = output_file

    def __call__(self, group):
        shard, documents = group
        ordered = sorted(document for document in documents if document is not None)
        path = manifest.shard_path(self.output_file, shard, self.maker.settings.num_shards)
        return shard, self.maker.write_shard(ordered, shard, path, system=BEAM_FILES)[0]


def find_text(patterns):
    """(path, size) of the files that patterns match, on any file system."""
    sizes = {}

    def find(pattern):
        found = file_systems().match([pattern])[0].metadata_list
        sizes.update((entry.path, entry.size_in_bytes) for entry in found)
        return [entry.path for entry in found]

    paths = cli.match_files(patterns, "input_file", find, inside="**")  # with folders below
    for path in paths:
        if os.path.splitext(path)[1].lower() in (".gz", ".xz"):
            raise cli.UserError("--input_file: {} is packed; here the text must be plain".format(
                path))
        if not sizes[path]:
            raise cli.UserError("--input_file: {} is empty".format(path))
    return paths, sizes


def main(flag_values):
    """Builds the pipeline and runs it."""
    logging.set_verbosity(logging.INFO)
    cli.require_flags(flag_values, ("input_file", "output_file", "vocab_file"))
    load_beam()
    run = cli.settings_of(flag_values)
    if run.masking == "dynamic" and not flag_values["dupe_factor"].present:
        run.dupe_factor = 1
    run.shard_range = None
    create_pretraining_data.check_options(run)
    paths, sizes = find_text(run.input_file)
    settings = create_pretraining_data.shard_settings(run, sum(sizes[path] for path in paths))
    maker = shards.ShardMaker(settings, run.vocab_file, user_dict=run.user_dict)
    description = create_pretraining_data.describe_output(
        maker, paths, sum(sizes[path] for path in paths))
    pieces = [piece for span in make_spans(paths, size_of=sizes.get) for piece in span]
    run_pipeline(pieces, maker, run.output_file, description, run.pipeline_options)


def run_pipeline(pieces, maker, output_file, description, options):
    """Pieces of text -> documents by shard -> files -> manifest."""
    beam = load_beam()
    options = beam.options.pipeline_options.PipelineOptions(options.split())
    with beam.Pipeline(options=options) as pipeline:
        documents = (pipeline | "pieces" >> beam.Create(pieces) | beam.Reshuffle()
                     | beam.FlatMap(ReadDocuments(maker.settings)))
        every_shard = pipeline | "shards" >> beam.Create(
            [(shard, None) for shard in range(maker.settings.num_shards)])
        _ = ((documents, every_shard) | beam.Flatten() | beam.GroupByKey()
             | beam.Map(WriteShard(maker, output_file))
             | beam.combiners.ToList()
             | beam.Map(lambda counts: manifest.write_manifest(
                 output_file, description, dict(counts), BEAM_FILES))
             | beam.Map(lambda totals: logging.info("%d documents, %d instances",
                                                    totals["documents"], totals["instances"])))


def define_script_flags(flag_values):
    """define_flags of SCRIPT, so that --help lists them for the script that was started."""
    SCRIPT.define_flags(flag_values)
    flags.adopt_module_key_flags(SCRIPT, flag_values)


if __name__ == "__main__":
    # Under the module's own name, so that workers can import what the steps refer to.
    SCRIPT = importlib.import_module("create_pretraining_data_beam")
    cli.run(SCRIPT.main, define_script_flags)
