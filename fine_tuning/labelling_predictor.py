"""A model fine-tuned on sequence labelling -> entities in texts, from Python, files and pipes.

In: output_dir of run_ner.py, or the SavedModel that --do_export wrote.  Out: for each text, however
long, its entities with type, start, end (behind the last character), text and confidence.

    labeller = LabellingPredictor("output/msra")
    labeller.predict(["新的桥在北京建成。"])     # [[Mention("LOC", 4, 6, "北京", 0.98)]]
"""

import collections
import itertools
import json

import numpy as np
import tensorflow.compat.v1 as tf

import modeling
from fine_tuning import crf
from fine_tuning.labelling import text_entities, windows_of
from fine_tuning.predictor import FineTunedModel, labels_in
from fine_tuning.tag_schemes import (
    SCHEMES,
    TagDecoder,
    entities_from_tags,
    tags_from_entities,
)
from fine_tuning.tasks import decoded_or_not

BLOCK = 512  # texts whose windows are sorted by length together

Mention = collections.namedtuple("Mention", "type start end text confidence")


def window_ids(window, tokenizer):
    """[CLS] tokens [SEP] of a labelling.Window as ids."""
    return tokenizer.convert_tokens_to_ids(["[CLS]"] + window.tokens + ["[SEP]"])


class LabellingPredictor(FineTunedModel):
    """A model of sequence labelling, loaded once.

    Attributes:
      scheme: tag_schemes.Scheme.  tags: T names.  decoder: TagDecoder.
    """

    HEAD, SERVED, POOLER = "labelling", ("tag_logits",), False

    def __init__(self, source, batch_size=32, pad_to=None, session_config=None):
        """Loads output_dir of a fine-tuning run, or an exported SavedModel; see FineTunedModel."""
        super().__init__(source, batch_size, pad_to, session_config)
        self.scheme = SCHEMES[self.description["scheme"]]
        self.tags = labels_in(self.description)
        if "transitions" in self.outputs:
            # An exported model's description has them: what serves it needs no variable.
            self.description["transitions"] = self.session.run(
                self.outputs.pop("transitions")).tolist()
        self.decoder = TagDecoder(self.tags, self.description.get("transitions"))

    def head_outputs(self, model):
        """tag_logits float32 [B, S, T], and with a CRF its transitions [T, T]."""
        count = len(labels_in(self.description))
        logits = modeling.tag_head(model.sequence_output, count, self.files.config)
        outputs = {"tag_logits": tf.identity(logits, "tag_logits")}
        if self.description["crf"]:
            outputs["transitions"] = tf.identity(crf.transition_scores(count))
        return outputs

    def scores_of(self, outputs, input_mask):
        """Probabilities float32 [tokens, T] of the tags of all tokens, without a CRF's part."""
        logits = outputs["tag_logits"][input_mask > 0]
        weights = np.exp(logits - logits.max(1, keepdims=True))
        return weights / weights.sum(1, keepdims=True)

    def predict(self, texts):
        """The Mentions in each of some texts: a list of lists, in the order of the text."""
        return [[Mention(entity.type, entity.start, entity.end, text[entity.start:entity.end],
                         confidence) for entity, confidence in found]
                for text, found in zip(texts, self.entities(texts, with_confidence=True))]

    def character_tags(self, text, entities):
        """One tag for each character of a text, for its Mentions or Entities."""
        return tags_from_entities([entity[:3] for entity in entities], len(text), self.scheme)

    def entities(self, texts, with_confidence=False):
        """Yields for each text [(Entity, confidence)]; without it, which takes time, it is 1."""
        texts = iter(texts)
        while True:
            block = list(itertools.islice(texts, BLOCK))
            if not block:
                return
            windows = [windows_of(text, self.tokenizer, self.description["max_seq_length"] - 2)
                       for text in block]
            answers = iter(self._answers(list(itertools.chain.from_iterable(windows)),
                                         with_confidence))
            for own in windows:
                yield text_entities(own, [next(answers) for _ in own])

    def _answers(self, windows, with_confidence):
        """[(Entity over its tokens, confidence)] of each window."""
        results = [None] * len(windows)
        encoded = [window_ids(window, self.tokenizer) for window in windows]
        for rows, outputs in self.batches([(ids, len(ids)) for ids in encoded]):
            logits = outputs["tag_logits"][:, 1:].astype(np.float64)  # the first token is [CLS]
            lengths = [len(encoded[row]) - 2 for row in rows]
            for row, scores, length, path in zip(
                    rows, logits, lengths, self.decoder.best(logits, lengths)):
                if with_confidence:
                    results[row] = self.decoder.entities(scores[:length], path)
                else:
                    results[row] = [(entity, 1.0) for entity in entities_from_tags(
                        [self.tags[tag] for tag in path])]
        return results

    def answer_lines(self, stream, encoding):
        """Yields (line of JSON, whether it is an answer) for each line of a binary stream.

        It comes before the next line is read. One that does not read is answered by the reason.
        """
        for _, text, error in decoded_or_not(stream, "standard input", encoding):
            if error:
                yield json.dumps({"text": text, "error": str(error)}, ensure_ascii=False), False
            else:
                yield mentions_line(text, self.predict([text])[0]), True


def mentions_line(text, mentions):
    """A text and its Mentions as a JSON object."""
    return json.dumps({"text": text, "entities": [
        mention._replace(confidence=round(mention.confidence, 6))._asdict()
        for mention in mentions]}, ensure_ascii=False)
