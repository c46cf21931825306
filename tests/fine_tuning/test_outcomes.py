"""Sets of labels and scores: targets, losses, thresholds and reports against plain references."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from cli import UserError
from fine_tuning import outcomes, tasks

LABELS = ("体育", "财经", "科技")


def row_of(name, line, labels=None, **changes):
    task = tasks.task_named(name, "label,text_a")._replace(**changes)
    return tasks.checked_row(task, tasks.row_of_line(task, "f", 1, line), "f", labels)


def test_a_cell_holds_any_number_of_labels():
    sets = outcomes.LabelSets(LABELS)
    cells = ["体育,科技\t文本", "财经 , 体育\t文本", "-\t文本", "\t文本"]
    labels = [row_of("multilabel", cell, LABELS).label for cell in cells]
    assert [sets.targets(label) for label in labels] == [
        [1, 0, 1], [1, 1, 0], [0, 0, 0], [-1, -1, -1]]
    with pytest.raises(UserError, match="'体育,军事' is not made of 体育, 财经, 科技"):
        row_of("multilabel", "体育,军事\t文本", LABELS)
    rows = [tasks.Row(number, "文本", None, label) for number, label in enumerate(
        ["体育,科技", "财经", "体育", "科技", "-"], 1)]
    assert set(tasks.labels_found(rows, "f", True, are_sets=True)) == set(LABELS)
    assert tasks.label_of({"tags": ["体育", "科技"]}, "tags") == "体育,科技"
    assert tasks.label_of({"tags": []}, "tags") == "-"


@pytest.mark.parametrize("cell, wanted", [("3.5", None), ("-2", None), ("nan", "a finite number"),
                                          ("good", "a number")])
def test_a_score_is_a_finite_number(cell, wanted):
    task = tasks.task_named("tsv", "text_a,label", outcome="score")
    assert tasks.wrong_label(task, cell, task.labels) == wanted


def test_the_bits_of_a_score_are_learned():
    score = outcomes.Score(tasks.SCORE_LABELS)
    targets = np.array([score.targets(text)[0] for text in ("0", "-1.5", "3.25", None)], np.int32)
    assert targets[3] == outcomes.NO_LABEL and (targets[:3] != outcomes.NO_LABEL).all()
    logits = np.array([[0.5], [0.5], [3.0]], np.float32)
    with tf.Graph().as_default(), tf.Session() as session:
        losses = session.run(score.losses(tf.constant(logits), tf.constant(targets[:3]), None))
    np.testing.assert_allclose(losses, [0.25, 4.0, 0.0625], rtol=1e-6)


def test_the_report_of_scores_equals_the_definitions():
    rng = np.random.RandomState(3)
    truth = np.round(rng.rand(200) * 5).astype(np.float32)
    scores = (truth + rng.randn(200)).astype(np.float32)
    targets = np.append(truth.view(np.int32), outcomes.NO_LABEL).astype(np.int32)
    two = [[np.append(scores + shift, 9)[:, None]] for shift in (-0.5, 0.5)]
    report = outcomes.Score(tasks.SCORE_LABELS).report(two, targets)

    def order(values):
        return np.array([(values < value).sum() + ((values == value).sum() + 1) / 2.0
                         for value in values])
    assert report["examples"] == 200
    assert report["pearson"] == pytest.approx(np.corrcoef(scores, truth)[0, 1], abs=1e-6)
    assert report["spearman"] == pytest.approx(
        np.corrcoef(order(scores), order(truth))[0, 1], abs=1e-6)
    assert report["loss"] == pytest.approx(np.square(scores - truth).mean(), rel=1e-5)
    assert outcomes.correlation(np.ones(5), np.arange(5.0)) == 0.0


def test_the_report_of_sets_equals_the_definitions():
    rng = np.random.RandomState(4)
    probabilities = rng.rand(300, 3)
    truth = rng.rand(300, 3) < [0.6, 0.2, 0.05]
    targets = np.concatenate([truth.astype(np.int32), [[-1, -1, -1]]])
    thresholds = [0.3, 0.5, 0.9]
    sets = outcomes.LabelSets(LABELS, {"thresholds": thresholds})
    report = sets.report([[np.concatenate([probabilities, [[0.9] * 3]])]], targets)
    said = probabilities >= thresholds
    f1 = [2.0 * (said & truth)[:, c].sum() / (said[:, c].sum() + truth[:, c].sum())
          for c in range(3)]
    assert report["examples"] == 300
    assert report["macro_f1"] == pytest.approx(np.mean(f1))
    assert report["micro_f1"] == pytest.approx(
        2.0 * (said & truth).sum() / (said.sum() + truth.sum()))
    assert report["exact"] == pytest.approx((said == truth).all(1).mean())
    assert report["loss"] == pytest.approx(
        -np.log(np.where(truth, probabilities, 1 - probabilities)).mean(), rel=1e-5)
    assert sets.predicted([0.4, 0.4, 0.95]) == ["体育", "科技"]
    assert sets.line(3, np.float32([0, 0, 0])).split("\t")[:2] == ["3", "-"]
    assert "体育\t" in sets.report_text(report)


@pytest.mark.parametrize("seed", range(5))
def test_thresholds_give_the_best_f1_there_is(seed):
    rng = np.random.RandomState(seed)
    truth = rng.rand(40, 2) < 0.3
    probabilities = np.round(0.5 * truth + 0.5 * rng.rand(40, 2), 1).astype(np.float32)
    for column, threshold in enumerate(outcomes.best_thresholds(probabilities, truth)):
        def f1_at(least, column=column):
            said = probabilities[:, column] >= least
            return 2.0 * (said & truth[:, column]).sum() / (said.sum() + truth[:, column].sum())
        assert f1_at(threshold) == pytest.approx(max(
            f1_at(least) for least in np.linspace(0.01, 1.0, 100)))
    assert outcomes.best_thresholds(probabilities[:, :1], np.zeros([40, 1], bool)) == [0.5]


def test_losses_of_sets_equal_the_definition():
    logits = np.array([[2.0, -1.0, 0.5], [0.0, 3.0, -4.0]], np.float32)
    targets = np.array([[1, 0, 0], [0, 1, 1]], np.int32)
    with tf.Graph().as_default(), tf.Session() as session:
        losses = session.run(outcomes.LabelSets(LABELS).losses(
            tf.constant(logits), tf.constant(targets), None))
    right = 1 / (1 + np.exp(-np.where(targets, logits, -logits)))
    np.testing.assert_allclose(losses, -np.log(right).mean(1), rtol=1e-5)
