"""Examples of a task -> a fine-tuned model that answers.

In: a task's files and a checkpoint.  Out: a folder that describes itself, reports, predictions,
exported models.

  tasks           where a task's files are, how a row reads, which labels there are
  examples        rows -> token ids -> batches
  tag_schemes     tags of characters <-> entities, valid decoding, how many entities are right
  labelling       tagged files -> windows of tokens; entities of tokens -> of characters
  reading         questions about passages -> windows of tokens; their scores -> answers
  reading_metric  how good answers are, as the official CMRC 2018 evaluator counts
  report          what a classifier got right
  fine_tuner      flags, checks and training of every fine-tuning script
  techniques      losses and rates that win points beside the plain ones
  step            a batch -> scalars and gradients, for any head
  several_runs    training over seeds or folds: mean, spread, the best one
  outcomes        one class, a set of labels or a score: losses, predictions, reports
  early_stopping  training in parts, until dev no longer gains
  crf             how likely are the tags of a row, each with its neighbour
  predictor       a fine-tuned folder -> probabilities: the engine for files, pipes and Python
  labelling_predictor  the same for sequence labelling
  reading_predictor    the same for reading comprehension
  portable        a model's TFLite and ONNX files
  export          the SavedModel, and those files, compared with the model
"""

__all__ = []  # for other rooms
