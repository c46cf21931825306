"""Pre-training records -> the batches of a training, and the loss and gradients of each.

In: TFRecord files and the manifest beside them.  Out: a tf.data.Dataset of masked batches; tensors.

  record_files     TFRecord files as files: count, check, repair
  reader           checked files -> batches, in an order that seed and step decide
  dynamic_masking  masks made anew for each batch
  step             a batch -> scalars and gradients
  plateau          what the loss is to be measured by
"""

__all__ = []  # for other rooms
