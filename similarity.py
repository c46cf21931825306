"""How similar are two sentences? From Python, or as a script in a pipe.

In: the folder of a model fine-tuned on pairs (LCQMC, AFQMC, ...), and pairs of sentences.
Out: for each pair the probability that they mean the same.

    similarity = SentenceSimilarity("output/lcqmc")
    similarity.predict([("花呗怎么还款", "如何还花呗")])  # [0.97]

    python similarity.py --model_dir=output/lcqmc --input_file=pairs.txt
    printf '花呗怎么还款\\t如何还花呗\\n' | python similarity.py --model_dir=output/lcqmc
"""

import io
import sys

from absl import flags

import cli
from fine_tuning.predictor import Predictor


class SentenceSimilarity(object):
    """A model fine-tuned on pairs, loaded once.

    Attributes:
      predictor: the Predictor.  column: number of the label that means "the same".
    """

    def __init__(self, folder, same_label="1", batch_size=32):
        """Loads output_dir of a fine-tuning run, or an exported SavedModel.

        Raises:
          UserError: no fine-tuned model there, not one of pairs, or without that label.
        """
        self.predictor = Predictor(folder, batch_size)
        if not self.predictor.pair:
            raise cli.UserError("--model_dir={}: fine-tuned on {}, which has no pairs".format(
                folder, self.predictor.description["task_name"]))
        if same_label not in self.predictor.labels:
            raise cli.UserError("--same_label={}: the model's labels are {}".format(
                same_label, ", ".join(self.predictor.labels)))
        self.column = self.predictor.labels.index(same_label)

    def predict(self, pairs):
        """float32 [rows]: for each (sentence, sentence) the probability that they are similar."""
        return self.predictor.predict(pairs)[:, self.column]


def define_flags(flag_values):
    """The flags of this script."""
    flags.DEFINE_string("model_dir", None, "Folder of a model fine-tuned on pairs: output_dir of "
                        "run_classifier.py, or its export/classifier. Required.",
                        flag_values=flag_values)
    flags.DEFINE_string("input_file", "-", "Pairs, one a line with a tab between; - (the default, "
                        "so that it sits in a pipe) reads standard input.",
                        flag_values=flag_values)
    flags.DEFINE_string("input_encoding", "utf-8", "Encoding of the input; most files are UTF-8.",
                        flag_values=flag_values)
    flags.DEFINE_string("same_label", "1", "The label that means 'similar'; 1 in LCQMC, AFQMC "
                        "and most others.", flag_values=flag_values)


def main(flag_values):
    """Prints a line for each line read: score, first sentence, second sentence.

    Returns:
      the exit code: 1 if a line was answered by ERROR and the reason.
    """
    cli.require_flags(flag_values, ["model_dir"])
    similarity = SentenceSimilarity(flag_values.model_dir, flag_values.same_label)
    if flag_values.input_file == "-":
        return cli.print_answers(score_lines(
            similarity, sys.stdin.buffer, "standard input", flag_values.input_encoding, 1))
    codes = []
    for path in cli.match_files(flag_values.input_file, "input_file"):
        with io.open(path, "rb") as stream:
            codes.append(cli.print_answers(score_lines(
                similarity, stream, path, flag_values.input_encoding, 256)))
    return max(codes)


def score_lines(similarity, stream, name, encoding, rows_at_once):
    """Yields ("score<TAB>line", True) for each line of a binary stream; an empty one stays empty.

    One that does not read gives ("ERROR<TAB>reason", False).
    """
    for _, line, answer in similarity.predictor.answers(stream, name, encoding, rows_at_once):
        if isinstance(answer, cli.UserError):
            yield "ERROR\t{}".format(answer), False
        elif answer is None:
            yield "", True
        else:
            yield "{:.6f}\t{}".format(answer[similarity.column], line), True


if __name__ == "__main__":
    cli.run(main, define_flags)
