"""What every trained model shares, whatever its heads are.

In: a loss and scalars to watch.  Out: checkpoints, log lines, TensorBoard scalars, clear failures.

  run_settings   the flags of all run scripts, and the tuples they are handed on as
  former_run     what earlier runs left in the folder
  estimator      Estimator, the specs of training, evaluation and prediction
  micro_batches  a batch in parts, at the memory of one
  precision      number formats and compilation
  memory         how many sequences fit a device, and what becomes of freed memory
  hooks          progress, the stop at a bad step or on a signal
  machines       several machines: all up, none lost
  failures       TensorFlow's exceptions as one line
  curves         a training as a picture
"""

__all__ = [  # for other rooms
    "run_settings", "former_run", "estimator", "micro_batches", "precision", "memory", "failures"]
