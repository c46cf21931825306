"""A model fine-tuned on reading comprehension -> answers, from Python, files and pipes.

In: output_dir of run_mrc.py, or the SavedModel that --do_export wrote.  Out: for each question
about a passage the likeliest answers, each a slice of the passage.

    reader = ReadingPredictor("output/cmrc2018")
    answers = reader.predict([("桥是哪年建成的？", "新的桥在2019年建成。")])
    answers[0][0].text                                 # "2019", the best of the first question
"""

import collections
import itertools
import json

import numpy as np
import tensorflow.compat.v1 as tf

import modeling
from fine_tuning.predictor import FineTunedModel
from fine_tuning.reading import Question, WindowEncoder, best_answers
from fine_tuning.tasks import decoded_or_not

# What cuts passages into windows and what chooses answers: name -> default.
OF_WINDOWS = collections.OrderedDict([
    ("max_seq_length", 512), ("doc_stride", 128), ("max_query_length", 64)])
OF_ANSWERS = collections.OrderedDict([
    ("max_answer_length", 64), ("n_best_size", 20), ("null_answers", False)])
BLOCK = 512  # questions whose windows are sorted by length together


class ReadingPredictor(FineTunedModel):
    """A model of reading comprehension, loaded once.

    Attributes:
      encoder: WindowEncoder.
      answer_settings: dict of what best_answers takes beside the logits.
    """

    HEAD, SERVED, POOLER = "reading", ("start_logits", "end_logits"), False

    def __init__(self, source, batch_size=32, pad_to=None, session_config=None):
        """Loads output_dir of a fine-tuning run, or an exported SavedModel; see FineTunedModel."""
        super().__init__(source, batch_size, pad_to, session_config)
        self.encoder = WindowEncoder(self.tokenizer,
                                     *[self.description[name] for name in OF_WINDOWS])
        self.answer_settings = {name: self.description[name] for name in OF_ANSWERS}

    def head_outputs(self, model):
        """start_logits and end_logits float32 [B, S]."""
        head = modeling.span_head(model)
        return {name: tf.identity(getattr(head, name), name) for name in self.SERVED}

    def scores_of(self, outputs, input_mask):
        """Probabilities float32 [2B, S]: of each place as the first of an answer, and as its last.

        A place is likely only among those of its window, whatever the padding.
        """
        logits = np.concatenate([outputs[name] for name in self.SERVED])
        logits = np.where(np.tile(input_mask, [2, 1]) > 0, logits, -np.inf)
        weights = np.exp(logits - logits.max(1, keepdims=True))
        return weights / weights.sum(1, keepdims=True)

    def predict(self, pairs):
        """The likeliest answers of each (question, passage): a list of [Candidate], best first."""
        return [found for _, found in self.answers(
            Question(None, text, context, []) for text, context in pairs)]

    def answers(self, questions):
        """Yields (Question, [Candidate]) for each Question, in order."""
        questions = iter(questions)
        while True:
            block = list(itertools.islice(questions, BLOCK))
            if not block:
                return
            windows = [self.encoder.windows(number, question)
                       for number, question in enumerate(block)]
            logits = iter(self.logits(list(itertools.chain.from_iterable(windows))))
            for question, own in zip(block, windows):
                yield question, best_answers(
                    question, self.encoder.pieces(question.context), own,
                    [next(logits) for _ in own], **self.answer_settings)

    def logits(self, windows):
        """For each Window the start and end logits of its places: a list of float32 [2, S]."""
        results = [None] * len(windows)
        for rows, outputs in self.batches([(window.ids, window.first) for window in windows]):
            for row, both in zip(rows, np.stack([outputs[name] for name in self.SERVED], 1)):
                results[row] = both[:, :len(windows[row].ids)]
        return results

    def answer_lines(self, stream, encoding):
        """Yields (line of JSON, whether it is an answer) for each line of a binary stream.

        It comes before the next line is read. A line holds a question, a tab and a passage; an
        empty one is answered by an empty one, one that does not read by the reason.
        """
        for number, line, error in decoded_or_not(stream, "standard input", encoding):
            cells = [] if error else line.split("\t", 1)
            if len(cells) == 2:
                best = self.predict([cells])[0][0]
                yield json.dumps(best._asdict(), ensure_ascii=False), True
            elif not error and not line.strip():
                yield "", True
            else:
                yield json.dumps({"error": str(error or (
                    "standard input, line {}: a question, a tab and a passage are expected, found "
                    "no tab".format(number)))}, ensure_ascii=False), False
