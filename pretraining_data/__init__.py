"""Text -> pre-training records.  No TensorFlow in this room.

In: files of text, one sentence a line, a blank line between documents.
Out: TFRecord files with a manifest beside them that says how they were made.

In the order in which a sentence meets them:
  documents     files -> documents, spread over shards by a hash
  segmentation  sentences -> token ids and the starts of words
  pairs         documents -> pairs of neighbouring segments, half of them swapped
  masking       pairs -> instances, and which words are masked
  records       instances -> bytes and files
  shards        one shard through all of these
  workers       many shards over many processes
  manifest      settings, counts and what a killed run had done
"""

__all__ = ["manifest", "masking", "records"]  # for other rooms
