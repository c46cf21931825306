"""Models as files: checkpoints of every public layout.

In: a path or a folder as the user names it.  Out: variables by this project's names, or the same
weights under other names and in other formats.

  checkpoints   finding, checking, starting from and writing TensorFlow checkpoints
  folders       a trained model's folder as the user names it
  layouts       the variable names of each layout, and what they tell of a model
  formats       a model's exact image in another format, or why there is none
  huggingface   folders of Hugging Face transformers, without PyTorch
  verification  does the converted model compute what its source computes
"""

__all__ = ["checkpoints", "folders", "layouts"]  # for other rooms
