"""Pre-training records -> the batches of a training.

In: TFRecord files and the manifest beside them.  Out: a tf.data.Dataset of masked batches.

  record_files     TFRecord files as files: count, check, repair
  reader           checked files -> batches, in an order that seed and step decide
  dynamic_masking  masks made anew for each batch
"""

__all__ = []  # for other rooms
