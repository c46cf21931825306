"""run_classifier.py end to end on toy pairs: train, resume, evaluate, predict, answer, refuse."""

import io
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from helpers.toy_classifier import PAIRS, write_classifier
from helpers.toy_records import run_script
from helpers.toys import ROOT, TOY_CONFIG, pair_rows, toy_tokens, write_text

import modeling
import run_classifier
from cli import UserError, sole_writer
from fine_tuning import predictor, tasks


def write_data(folder, train=48, dev=13, test=9):
    for name, count, start in (("train", train, 0), ("dev", dev, 3), ("test", test, 7)):
        write_text(folder / (name + ".txt"), pair_rows(count, start))
    return str(folder)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def small_config(tmp_path_factory):
    """A configuration of one layer: the graph is built two dozen times here."""
    config = dict(TOY_CONFIG, vocab_size=len(toy_tokens()), num_hidden_layers=1)
    return write_text(tmp_path_factory.mktemp("config") / "config.json", json.dumps(config))


@pytest.fixture(scope="module")
def call(toy_vocab, small_config):
    """Runs the script with the toy model's files and further flags."""
    def run(output, *switches, **changes):
        settings = dict(task_name="lcqmc_pair", vocab_file=toy_vocab, output_dir=str(output),
                        bert_config_file=small_config, max_seq_length=40, train_batch_size=8,
                        learning_rate=0.001, num_train_epochs=1, eval_batch_size=8)
        settings.update(changes)
        run_script(run_classifier, *(["--%s=%s" % item for item in settings.items()
                                      if item[1] is not None] + list(switches)))
    return run


@pytest.fixture(scope="module")
def trained(tmp_path_factory, call):
    """A model fine-tuned with --save_best until it has learned the toy task."""
    data = write_data(tmp_path_factory.mktemp("more_data"), train=320)
    folder = tmp_path_factory.mktemp("trained")
    call(folder, "--do_train", "--save_best", data_dir=data, num_train_epochs=3,
         learning_rate=0.005, classifier_dropout=0)
    return str(folder)


# --- sets of labels, scores -------------------------------------------------------------------


def test_sets_of_labels_are_learned_and_predicted_from_thresholds_by_dev(tmp_path, call):
    words = {"天": "天气", "鱼": "食物", "桥": "地方"}
    rng = np.random.RandomState(2)
    for name, count in (("train", 240), ("dev", 40), ("test", 20)):
        rows = []
        for _ in range(count):
            chosen = [word for word in words if rng.rand() < 0.4]
            text = "".join(rng.permutation(chosen + ["的", "有", "人"]))
            rows.append("{}\t{}".format(",".join(words[word] for word in chosen) or "-", text))
        write_text(tmp_path / (name + ".tsv"), "\n".join(rows) + "\n")
    folder = tmp_path / "out"
    call(folder, "--do_train", "--do_eval", "--do_predict", task_name="multilabel",
         columns="label,text_a", data_dir=str(tmp_path), num_train_epochs=20, learning_rate=0.003,
         classifier_dropout=0)
    report = results(folder)
    assert report["micro_f1"] > 0.9 and report["labels"] == sorted(words.values())
    thresholds = results(folder, "classifier")["thresholds"]
    assert [report["classes"][label]["threshold"] for label in report["labels"]] == thresholds
    assert thresholds != [0.5] * 3
    with io.open(str(folder / "test_results.tsv"), encoding="utf-8") as stream:
        header, *lines = [line.rstrip("\n").split("\t") for line in stream]
    assert header[:2] == ["row", "labels"] and len(lines) == 20
    for _, labels, *probabilities in lines:
        assert (set(labels.split(",")) - {"-"}) == {
            label for label, value, least in zip(report["labels"], probabilities, thresholds)
            if float(value) >= least}


def test_scores_are_learned_and_predicted(tmp_path, call, capsys):
    rng = np.random.RandomState(3)
    for name, count in (("train", 240), ("dev", 40), ("test", 20)):
        rows = []
        for _ in range(count):
            fish = rng.randint(5)
            rows.append("{}\t天有\t{}".format("".join(rng.permutation(["鱼"] * fish + ["的"] * 3)),
                                             fish))
        write_text(tmp_path / (name + ".tsv"), "\n".join(rows) + "\n")
    folder = tmp_path / "out"
    call(folder, "--do_train", "--do_eval", "--do_predict", task_name="stsb",
         data_dir=str(tmp_path), num_train_epochs=20, learning_rate=0.003, classifier_dropout=0)
    report = results(folder)
    assert report["pearson"] > 0.9 and report["spearman"] > 0.9
    assert "pearson = {}\n".format(report["pearson"]) in capsys.readouterr().out
    model = predictor.Predictor(str(folder))
    with io.open(str(tmp_path / "test.tsv"), encoding="utf-8") as stream:
        expected = model.predict([line.split("\t")[:2] for line in stream])
    with io.open(str(folder / "test_results.tsv"), encoding="utf-8") as stream:
        lines = stream.read().splitlines()
    assert lines[0] == "row\tscore"
    found = np.array([line.split("\t")[1] for line in lines[1:]], np.float64)
    np.testing.assert_allclose(found, expected[:, 0], atol=1e-6)


def test_what_is_for_classes_alone_is_refused_with_another_outcome(tmp_path, call):
    write_text(tmp_path / "train.tsv", "a\tb\t1\n")
    with pytest.raises(UserError, match="--focal_gamma is 2.0: it is for one class of several"):
        call(tmp_path, "--do_train", task_name="stsb", data_dir=str(tmp_path), focal_gamma=2)
    with pytest.raises(UserError, match="--outcome is score, the task lcqmc_pair has classes"):
        call(tmp_path, "--do_train", data_dir=str(tmp_path), outcome="score")


# --- several runs -----------------------------------------------------------------------------


def test_runs_over_seeds_are_summed_up_and_the_best_model_is_kept(tmp_path, data, call, capsys):
    call(tmp_path, "--do_train", "--do_predict", "--num_runs=2", data_dir=data, random_seed=7)
    summary = results(tmp_path, "runs")
    reports = [results(tmp_path / name) for name in ("run_7", "run_8")]
    accuracies = [report["accuracy"] for report in reports]
    assert [run["loss"] for run in summary["runs"].values()] == [r["loss"] for r in reports]
    assert reports[0]["loss"] != reports[1]["loss"]
    assert summary["mean"]["accuracy"] == pytest.approx(np.mean(accuracies))
    assert summary["standard_deviation"]["accuracy"] == pytest.approx(np.std(accuracies, ddof=1))
    best = tmp_path / summary["best"]
    assert summary["runs"][summary["best"]]["accuracy"] == max(accuracies)
    assert "mean\t{:.4f}".format(np.mean(accuracies)) in capsys.readouterr().out
    chosen = [tf.train.load_checkpoint(predictor.chosen_checkpoint(str(folder))).get_tensor(
        "output_bias") for folder in (tmp_path, best)]
    np.testing.assert_array_equal(*chosen)


def test_a_model_for_each_fold_and_their_mean(tmp_path, data, call):
    call(tmp_path, "--do_train", "--do_predict", "--num_folds=2", data_dir=data)
    folds = [str(tmp_path / "fold_{}".format(number)) for number in (1, 2)]
    assert [results(fold)["examples"] for fold in folds] == [24, 24]  # of 48
    assert list(results(tmp_path, "runs")["runs"]) == ["fold_1", "fold_2"]
    with io.open(os.path.join(data, "test.txt"), encoding="utf-8") as stream:
        pairs = [line.split("\t")[:2] for line in stream]
    np.testing.assert_allclose(
        predictions(tmp_path)[1],
        np.mean([predictor.Predictor(fold).predict(pairs) for fold in folds], 0), atol=1e-6)


@pytest.mark.parametrize("changes, message", [
    (dict(num_runs=0), "--num_runs is 0, must be at least 1"),
    (dict(num_folds=1), "--num_folds is 1, must be at least 2"),
    (dict(num_folds=99), "48 rows are too few for 99 parts"),
    (dict(num_folds=2, num_runs=2), "--num_folds=2 makes several models and does not go with "
     "--num_runs")])
def test_runs_and_folds_that_cannot_be_are_named(tmp_path, data, call, changes, message):
    with pytest.raises(UserError, match=message):
        call(tmp_path, "--do_train", data_dir=data, **changes)


@pytest.fixture
def copied(trained, tmp_path):
    return shutil.copytree(trained, str(tmp_path / "copy"))


def results(folder, name="eval_results"):
    with io.open(os.path.join(str(folder), name + ".json"), encoding="utf-8") as stream:
        return json.load(stream)


def predictions(folder):
    """(labels, probabilities [rows, C]) of test_results.tsv."""
    with io.open(os.path.join(str(folder), "test_results.tsv"), encoding="utf-8") as stream:
        rows = [line.rstrip("\n").split("\t") for line in stream]
    assert rows[0][:3] == ["row", "label", "confidence"]
    assert [int(row[0]) for row in rows[1:]] == list(range(1, len(rows)))
    return [row[1] for row in rows[1:]], np.array([row[3:] for row in rows[1:]], np.float64)


# --- training ---------------------------------------------------------------------------------


def test_learns_keeps_the_best_and_describes_itself(trained):
    with io.open(os.path.join(trained, "evaluations.tsv"), encoding="utf-8") as stream:
        lines = [line.split("\t") for line in stream.read().splitlines()[1:]]
    assert [int(line[0]) for line in lines] == [40, 80, 120]
    accuracies = [float(line[1]) for line in lines]
    best = os.path.join(trained, "best")
    assert results(best)["accuracy"] == max(accuracies) > 0.9
    first_best = int(lines[accuracies.index(max(accuracies))][0])
    assert tf.train.latest_checkpoint(best).endswith("model.ckpt-%d" % first_best)
    assert predictor.chosen_checkpoint(trained) == tf.train.latest_checkpoint(best)
    with io.open(os.path.join(trained, "classifier.json"), encoding="utf-8") as stream:
        description = json.load(stream)
    assert (description["task_name"], description["labels"]) == ("lcqmc_pair", ["0", "1"])
    assert description["max_seq_length"] == 40 and "more_data" in description["data_dir"]
    assert os.path.exists(os.path.join(trained, "flags.json"))
    assert predictor.Predictor(best).predict(PAIRS).shape == (23, 2)


def test_evaluation_is_the_same_at_any_batch_and_padding(trained, tmp_path, data):
    found = []
    for switches in (["--eval_batch_size=8"], ["--eval_batch_size=5"],
                     ["--eval_batch_size=100", "--pad_to_max_length"]):
        run_script(run_classifier, "--output_dir=" + trained, "--do_eval", *switches)
        found.append(results(trained))
    assert found[0]["examples"] == 13
    for other in found[1:]:
        assert other["accuracy"] == found[0]["accuracy"]
        assert other["confusion"] == found[0]["confusion"]
        assert abs(other["loss"] - found[0]["loss"]) < 1e-5


def test_goes_on_from_where_it_stopped_and_then_has_nothing_to_train(
        tmp_path, data, call, caplog):
    def train(epochs):
        caplog.clear()
        call(tmp_path, "--do_train", data_dir=data, num_train_epochs=epochs)
        return caplog.text

    assert "training from step 0 to 6" in train(1)
    assert "training from step 6 to 12" in train(2)
    again = train(2)
    assert "nothing to train" in again and "step 12 of 12" in again


def test_patience_stops_and_stays_stopped(tmp_path, data, call, caplog):
    settings = dict(data_dir=data, num_train_epochs=9, learning_rate=1e-9, patience=1)
    call(tmp_path, "--do_train", **settings)
    assert "stopped early at step 12 of 54: 1 evaluations without a better" in caplog.text
    assert tf.train.latest_checkpoint(str(tmp_path)).endswith("model.ckpt-12")
    call(tmp_path, "--do_train", **settings)
    assert tf.train.latest_checkpoint(str(tmp_path)).endswith("model.ckpt-12")


def test_tiny_data_train_one_step_and_changed_data_put_the_old_model_aside(
        tmp_path, call, caplog):
    data = write_data(tmp_path, train=3)
    output = tmp_path / "out"
    call(output, "--do_train", data_dir=data, train_batch_size=32)
    assert "3 rows in 1 steps an epoch (batch 3), 1 epochs: 1 steps" in caplog.text
    assert tf.train.latest_checkpoint(str(output)).endswith("model.ckpt-1")
    write_text(tmp_path / "train.txt", pair_rows(17))
    call(output, "--do_train", data_dir=data, max_seq_length=6)
    assert "is moved to %s" % (output / "replaced-1") in caplog.text
    assert "training from step 0 to 3" in caplog.text
    assert "17 cut to 6 tokens" in caplog.text
    assert os.path.exists(str(output / "replaced-1" / "model.ckpt-1.index"))
    call(output, "--do_eval", data_dir=data, max_seq_length=5)
    assert "dev.txt (utf-8): 13 rows" in caplog.text and "13 cut to 5 tokens" in caplog.text


@pytest.mark.parametrize("epochs", [1, 2], ids=["at the last step", "on the way"])
def test_a_run_killed_in_an_evaluation_evaluates_that_checkpoint_when_resumed(
        tmp_path, data, call, monkeypatch, epochs):
    def train():
        call(tmp_path, "--do_train", "--save_best", data_dir=data, num_train_epochs=epochs)

    with monkeypatch.context() as killed:
        killed.setattr(run_classifier, "score", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            train()
    assert tf.train.latest_checkpoint(str(tmp_path)).endswith("model.ckpt-6")
    assert not os.path.exists(str(tmp_path / "best"))
    train()
    with io.open(str(tmp_path / "evaluations.tsv"), encoding="utf-8") as stream:
        steps = [line.split("\t")[0] for line in stream.read().splitlines()[1:]]
    assert steps == ["6", "12"][:epochs]
    assert tf.train.latest_checkpoint(str(tmp_path / "best"))


def test_the_folders_own_vocabulary_serves_a_run_with_changed_data(tmp_path, call, caplog):
    output = tmp_path / "out"
    call(output, "--do_train", data_dir=write_data(tmp_path, train=3))
    own = str(output / "vocab.txt")
    call(output, "--do_train", data_dir=write_data(tmp_path, train=4), vocab_file=own)
    assert "is moved to" in caplog.text and tf.train.latest_checkpoint(str(output))
    with io.open(own, "rb") as kept, io.open(
            str(output / "replaced-1" / "vocab.txt"), "rb") as moved:
        assert kept.read() == moved.read() != b""


# --- evaluation and prediction ----------------------------------------------------------------


def test_accuracy_of_test_results_is_the_evaluations(trained, data, capsys):
    run_script(run_classifier, "--output_dir=" + trained, "--do_eval", "--eval_split=test",
               "--do_predict", "--predict_batch_size=4")
    labels, probabilities = predictions(trained)
    with io.open(os.path.join(data, "test.txt"), encoding="utf-8") as stream:
        truth = [line.split("\t")[2].strip() for line in stream]
    accuracy = sum(label == right for label, right in zip(labels, truth)) / len(truth)
    assert results(trained, "eval_results_test")["accuracy"] == accuracy
    assert "accuracy = {}\n".format(accuracy) in capsys.readouterr().out
    assert [str(best) for best in probabilities.argmax(1)] == labels


def test_a_row_out_for_each_row_in_whatever_the_batch(trained, data, tmp_path):
    rows = pair_rows(9, 7).splitlines()
    expected = predictor.Predictor(trained).predict([tuple(row.split("\t")[:2]) for row in rows])
    for count in (1, 7, 9):
        for batch_size in (8, 3):
            unlabelled = ["\t".join(row.split("\t")[:2]) for row in rows[:count]]
            path = write_text(tmp_path / "rows.txt", "\n".join(unlabelled))
            run_script(run_classifier, "--output_dir=" + trained, "--do_predict",
                       "--predict_file=" + path, "--predict_batch_size=%d" % batch_size)
            labels, probabilities = predictions(trained)
            assert len(labels) == count
            assert np.abs(probabilities.sum(1) - 1).max() < 1e-6
            assert np.abs(probabilities - expected[:count]).max() < 1e-6


@pytest.mark.parametrize("task", ["tnews", "ocnli", "csl", "wsc"])
def test_clue_takes_an_id_and_a_label_of_each_row(task, tmp_path, toy_vocab, small_config):
    labels = tasks.TASKS[task].labels
    spans = dict(span1_text="天气", span1_index=0, span2_text="雨", span2_index=3)
    record = dict(sentence="天气", sentence1="天气", sentence2="雨", keyword=["天气"], abst="雨",
                  text="天气有雨", target=spans)
    rows = [dict(record, id=7), dict(record, id="a", sentence="雨", sentence1="雨"), record]
    path = write_text(tmp_path / "test.json", "\n\n".join(map(json.dumps, rows)) + "\n")
    output = write_classifier(tmp_path / "out", toy_vocab, small_config, labels=labels,
                              pair=tasks.TASKS[task].pair, task=task)
    run_script(run_classifier, "--output_dir=" + output, "--do_predict", "--predict_file=" + path,
               "--clue_submission")
    name = {"tnews": "tnews11", "ocnli": "ocnli_50k", "csl": "csl", "wsc": "cluewsc11"}[task]
    with io.open(os.path.join(output, name + "_predict.json"), encoding="utf-8") as stream:
        found = [json.loads(line) for line in stream]
    with io.open(os.path.join(output, "test_results.tsv"), encoding="utf-8") as stream:
        predicted = [line.split("\t")[1] for line in stream if line.strip()][1:]
    assert found == [{"id": number, "label": label}
                     for number, label in zip([7, "a", 2], predicted)]


@pytest.mark.parametrize("changes", [{}, dict(predict_file="-"), dict(
    task_name="tnews", predict_file="train.txt")])
def test_a_clue_submission_of_what_clue_has_not_is_refused(call, data, tmp_path, monkeypatch,
                                                           changes):
    monkeypatch.chdir(data)
    with pytest.raises(UserError, match="--clue_submission: .* is no JSON file of one of CLUE's"):
        call(tmp_path / "out", "--do_train", "--do_predict", "--clue_submission", data_dir=data,
             **changes)
    assert not os.path.exists(str(tmp_path / "out"))


def test_a_fresh_process_answers_a_pipe_in_any_locale(trained):
    text = "".join("{}\t{}\n".format(*pair) for pair in PAIRS[:3]) + "\n"
    environment = dict(os.environ, LC_ALL="C", PYTHONUTF8="0", PYTHONIOENCODING="ascii")
    done = subprocess.run(
        [sys.executable, os.path.join(ROOT, "run_classifier.py"), "--output_dir=" + trained,
         "--do_predict", "--predict_file=-"],
        input=text.encode("utf-8"), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=environment)
    assert done.returncode == 0, done.stderr.decode("utf-8")
    lines = done.stdout.decode("utf-8").split("\n")
    assert len(lines) == 5 and lines[3:] == ["", ""]
    found = np.array([line.split("\t")[3:] for line in lines[:3]], np.float64)
    assert np.abs(found - predictor.Predictor(trained).predict(PAIRS[:3])).max() < 1e-6


def test_a_blank_line_of_a_file_is_answered_by_one(trained, tmp_path, caplog, capsys):
    rows = ["甲\t乙\t1", "", "丙\t丁\t0"]
    path = write_text(tmp_path / "rows.txt", "\n".join(rows) + "\n")
    run_script(run_classifier, "--output_dir=" + trained, "--do_predict", "--predict_file=" + path)
    with io.open(os.path.join(trained, "test_results.tsv"), encoding="utf-8") as stream:
        lines = stream.read().split("\n")
    assert [line[:2] for line in lines[1:]] == ["1\t", "", "3\t", ""]
    expected = predictor.Predictor(trained).predict([("甲", "乙"), ("丙", "丁")])
    found = np.array([line.split("\t")[3:] for line in lines[1::2]], np.float64)
    assert np.abs(found - expected).max() < 1e-6
    accuracy = np.mean(expected.argmax(1) == [1, 0])
    assert "accuracy = {}\n".format(accuracy) in capsys.readouterr().out
    assert "rows.txt: rows of each label: 0 1, 1 1" in caplog.text


def test_a_pipe_goes_on_after_a_bad_line_and_ends_with_exit_code_1(
        trained, monkeypatch, capsys):
    def exit_code(content):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
        return run_script(run_classifier, "--output_dir=" + trained, "--do_predict",
                          "--predict_file=-")

    assert exit_code(b"a\tb\nab\nb\ta\n") == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("2\tERROR\tstandard input, line 2: 1 columns where 2 are expected")
    assert [line[:2] for line in lines] == ["1\t", "2\t", "3\t"]
    assert exit_code(b"a\tb\n") == 0


def test_published_command_evaluates_the_newest_or_the_initial_checkpoint(
        tmp_path, data, call, copied, toy_vocab, small_config):
    initial = write_classifier(tmp_path, toy_vocab, small_config)
    prefix = predictor.chosen_checkpoint(initial)
    model = predictor.Predictor(initial)
    output = tmp_path / "out"
    call(output, "--do_train=False", "--do_eval=true", data_dir=data,
         init_checkpoint=prefix, num_train_epochs=3)
    with io.open(os.path.join(data, "dev.txt"), encoding="utf-8") as stream:
        rows = [line.rstrip("\n").split("\t") for line in stream]
    found = model.predict([tuple(row[:2]) for row in rows])
    truth = np.array([int(row[2]) for row in rows])
    report = results(output)
    assert report["accuracy"] == np.mean(found.argmax(1) == truth)
    assert abs(report["loss"] + np.log(found[np.arange(len(truth)), truth]).mean()) < 1e-5
    call(copied, "--do_train=False", "--do_eval=true", data_dir=data, init_checkpoint=prefix)
    assert results(copied)["examples"] == 13 and results(copied)["loss"] < report["loss"]


def test_own_data_with_named_labels_and_json_lines(tmp_path, call):
    write_text(tmp_path / "train.tsv", "类\t文\n好\t天气\n坏\t有雨\n中\t图书馆\n")
    write_text(tmp_path / "test.tsv", "文\t编号\n天气\t1\n有雨\t2\n")
    output = tmp_path / "out"
    call(output, "--do_train", "--do_predict", task_name="tsv", columns="text_a=文,label=类",
         data_dir=str(tmp_path))
    labels, probabilities = predictions(output)
    assert set(labels) <= {"中", "坏", "好"} and probabilities.shape == (2, 3)
    path = write_text(tmp_path / "more.tsv", "文\n数据\n")
    run_script(run_classifier, "--output_dir=%s" % output, "--do_predict",
               "--predict_file=" + path)
    assert len(predictions(output)[0]) == 1


# --- export -----------------------------------------------------------------------------------


def test_export_says_what_it_wrote_and_serves_the_same(copied, capsys):
    run_script(run_classifier, "--output_dir=" + copied, "--do_export")
    lines = capsys.readouterr().out.splitlines()
    assert "export/classifier/1: on 200 rows the probabilities differ by at most" in lines[0]
    if tf.__version__ < "2":
        assert len(lines) == 2 and "needs the converter of TensorFlow 2.15" in lines[1]
    else:
        assert [line.split(":")[0] for line in lines[1:]] == [
            "classifier.tflite", "classifier_dynamic.tflite"]
        assert "on 200 rows" in lines[1]
    served = predictor.Predictor(os.path.join(copied, "export", "classifier"))
    model = predictor.Predictor(copied)
    assert np.abs(served.predict(PAIRS) - model.predict(PAIRS)).max() < 1e-6


def test_export_without_data_compares_on_random_words(tmp_path, toy_vocab, toy_config, capsys):
    folder = write_classifier(tmp_path, toy_vocab, toy_config)
    run_script(run_classifier, "--output_dir=" + folder, "--do_export")
    assert "on 200 rows" in capsys.readouterr().out


# --- refusals ---------------------------------------------------------------------------------


@pytest.mark.parametrize("changes, message", [
    (dict(task_name="foo"), "--task_name: unknown task 'foo'; known: lcqmc"),
    (dict(max_seq_length=129), "--max_seq_length is 129, above the config's .* 128"),
    (dict(max_seq_length=4), "--max_seq_length=4 is too short"),
    (dict(data_dir="/nowhere"), "--data_dir=/nowhere: no train file for the task lcqmc"),
    (dict(vocab_file=None), "--vocab_file is required"),
    (dict(num_train_epochs=0), "--num_train_epochs is 0.0, must be above 0"),
    (dict(num_train_epochs="inf"), "--num_train_epochs is inf, must be above 0 and finite"),
    (dict(use_tpu=True, master="x", train_batch_size=9), "--train_batch_size is 9.*cores=8"),
    (dict(init_checkpoint="/nowhere/model.ckpt"), "no checkpoint '/nowhere/model.ckpt'"),
    (dict(input_encoding="latin9x"), "--input_encoding"),
])
def test_bad_settings_fail_before_any_work(tmp_path, data, call, changes, message):
    settings = dict(dict(data_dir=data), **changes)
    with pytest.raises(UserError, match=message):
        call(tmp_path / "out", "--do_train", **settings)
    assert not tf.train.latest_checkpoint(str(tmp_path / "out"))


@pytest.mark.parametrize("text, message", [
    ("天\t气\t1\n天\t气\t2\n", r"train\.txt, line 2: label '2' is not one of 0, 1"),
    ("天\t气\t1\n天\t气\n", r"train\.txt, line 2: 2 columns where 3 are expected"),
    ("\n\n", r"train\.txt: no rows"),
])
def test_bad_rows_fail_with_file_and_line(tmp_path, call, text, message):
    write_text(tmp_path / "train.txt", text)
    with pytest.raises(UserError, match=message):
        call(tmp_path / "out", "--do_train", data_dir=str(tmp_path))
    assert not os.listdir(str(tmp_path / "out" / "encoded"))


def test_models_that_are_not_fine_tuned_fail_clearly(tmp_path, data, call, small_config):
    with pytest.raises(UserError, match="holds no checkpoint and there is no --init_checkpoint"):
        call(tmp_path / "out", "--do_eval", data_dir=data)
    with pytest.raises(UserError, match="none of --do_train, --do_eval, --do_predict"):
        call(tmp_path / "out", data_dir=data)
    config = modeling.AlbertConfig.from_json_file(small_config)
    with tf.Graph().as_default(), tf.Session() as session:
        modeling.AlbertModel(config, tf.zeros([1, 4], tf.int32))
        session.run(tf.global_variables_initializer())
        bare = tf.train.Saver().save(session, str(tmp_path / "bare.ckpt"))
    with pytest.raises(UserError, match="no classifier weights .*train with --do_train"):
        call(tmp_path / "out", "--do_eval", data_dir=data, init_checkpoint=bare)


# --- what is used, and what is not ------------------------------------------------------------


def test_a_checkpoint_of_the_folder_that_is_named_is_the_one_used(trained):
    with io.open(os.path.join(trained, "evaluations.tsv"), encoding="utf-8") as stream:
        accuracy = {line.split("\t")[0]: float(line.split("\t")[3]) for line in stream
                    if line[0].isdigit()}
    assert len(set(accuracy.values())) == 3
    for name in ("model.ckpt-40", "model.ckpt-80.index"):
        run_script(run_classifier, "--output_dir=" + trained, "--do_eval",
                   "--init_checkpoint=" + os.path.join(trained, name))
        step = name.split("-")[1].split(".")[0]
        assert abs(results(trained)["loss"] - accuracy[step]) < 1e-6


def test_what_the_job_does_not_use_is_said_and_not_checked(copied, caplog):
    run_script(run_classifier, "--output_dir=" + copied, "--do_eval", "--num_train_epochs=0",
               "--init_checkpoint=/nowhere/model.ckpt", "--train_batch_size=0", "--tpu_zone=x",
               "--predict_file=y", "--eval_batch_size=7")
    assert results(copied)["examples"] == 13
    for line in ("--init_checkpoint=/nowhere/model.ckpt is not used: --output_dir holds",
                 "not used, as nothing is trained: --train_batch_size, --num_train_epochs",
                 "not used, as nothing is predicted: --predict_file",
                 "not used, as --use_tpu is not set: --tpu_zone"):
        assert line in caplog.text
    assert "--eval_batch_size" not in caplog.text


def test_an_initial_checkpoint_answers_a_pipe_and_is_exported_without_further_flags(
        tmp_path, toy_vocab, small_config, monkeypatch, capsys):
    initial = write_classifier(tmp_path, toy_vocab, small_config, labels=("b", "a", "c"),
                               task="tsv", pair=False, columns="text_a")
    flags = ["--output_dir=%s" % (tmp_path / "out"),
             "--init_checkpoint=" + predictor.chosen_checkpoint(initial)]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("天气\n".encode("utf-8"))))
    run_script(run_classifier, "--do_predict", "--predict_file=-", *flags)
    found = capsys.readouterr().out.rstrip("\n").split("\t")
    expected, = predictor.Predictor(initial).predict(["天气"])
    assert found[1] == ("b", "a", "c")[expected.argmax()]
    assert np.abs(np.array(found[3:], np.float64) - expected).max() < 1e-6
    run_script(run_classifier, "--do_export", *flags)
    assert "export/classifier/1: on 200 rows the probabilities differ" in capsys.readouterr().out
    served = predictor.Predictor(str(tmp_path / "out" / "export" / "classifier"))
    assert served.labels == ["b", "a", "c"]


def test_labels_that_nothing_names_are_asked_for(tmp_path, call, toy_vocab, small_config):
    initial = predictor.chosen_checkpoint(write_classifier(tmp_path, toy_vocab, small_config))
    os.remove(os.path.join(os.path.dirname(initial), "classifier.json"))
    with pytest.raises(UserError, match="--data_dir is required: the labels of --task_name=tsv"):
        call(tmp_path / "out", "--do_predict", task_name="tsv", columns="text_a",
             predict_file="-", init_checkpoint=initial)


def test_a_models_own_labels_go_before_the_tasks(tmp_path, data, call, toy_vocab, small_config):
    swapped = write_classifier(tmp_path / "swapped", toy_vocab, small_config, labels=("1", "0"))
    other = write_classifier(tmp_path / "other", toy_vocab, small_config, labels=("no", "yes"))
    call(tmp_path / "out", "--do_eval", data_dir=data, init_checkpoint=swapped)
    assert results(tmp_path / "out")["labels"] == ["1", "0"]
    with pytest.raises(UserError, match="lcqmc_pair has the labels 0, 1, the model no, yes"):
        call(tmp_path / "out", "--do_eval", data_dir=data, init_checkpoint=other)


def test_a_model_is_not_evaluated_by_another_config(copied, data, call, small_config, tmp_path):
    with io.open(small_config, encoding="utf-8") as stream:
        changed = dict(json.load(stream), hidden_act="relu")
    path = write_text(tmp_path / "relu.json", json.dumps(changed))
    with pytest.raises(UserError, match="a model whose hidden_act is 'gelu', in .* 'relu'"):
        call(copied, "--do_eval", data_dir=data, bert_config_file=path)


def test_a_second_training_in_the_folder_is_refused_and_an_evaluation_is_not(copied, data, call):
    with sole_writer(copied, "output_dir"):
        with pytest.raises(UserError, match="is being written by another run, process"):
            call(copied, "--do_train", data_dir=data)
        call(copied, "--do_eval", data_dir=data)


def test_changed_data_start_from_the_initial_checkpoint_again(
        tmp_path, call, toy_vocab, small_config, caplog):
    initial = write_classifier(tmp_path / "initial", toy_vocab, small_config)
    for count in (8, 9):
        caplog.clear()
        call(tmp_path / "out", "--do_train", init_checkpoint=initial,
             data_dir=write_data(tmp_path, train=count))
        assert "variables from " + predictor.chosen_checkpoint(initial) in caplog.text
    assert "is moved to" in caplog.text


def test_training_starts_a_head_for_another_number_of_labels_anew(
        tmp_path, data, call, toy_vocab, small_config, caplog):
    three = write_classifier(tmp_path, toy_vocab, small_config, labels=("a", "b", "c"))
    call(tmp_path / "out", "--do_train", data_dir=data, init_checkpoint=three)
    assert "a new head is started: output_bias of %s" % predictor.chosen_checkpoint(
        three) in caplog.text
    assert "has the shape [3], this task's has [2]" in caplog.text
    assert "new, not in the checkpoint: output_bias, output_weights" in caplog.text


def test_another_number_of_labels_in_the_checkpoint_fails_clearly(
        tmp_path, data, call, toy_vocab, small_config):
    three = write_classifier(tmp_path, toy_vocab, small_config, labels=("a", "b", "c"))
    os.remove(os.path.join(three, "classifier.json"))
    with pytest.raises(UserError, match=r"output_bias has shape \[3\] there and \[2\]"):
        call(tmp_path / "out", "--do_eval", data_dir=data,
             init_checkpoint=predictor.chosen_checkpoint(three))


@pytest.fixture(scope="module")
def with_techniques(tmp_path_factory, call, data):
    """A model fine-tuned for six steps with every technique on."""
    folder = tmp_path_factory.mktemp("techniques")
    call(folder, "--do_train", "--do_eval", "--do_predict", data_dir=data, fgm_epsilon=1,
         rdrop_weight=4, label_smoothing=0.1, focal_gamma=2, class_weights="balanced",
         layer_decay=0.9, ema_decay=0.5, save_checkpoints_steps=1, keep_checkpoint_max=0)
    return str(folder)


def test_all_techniques_together_train_and_the_mean_of_the_weights_answers(with_techniques):
    name, step = "bert/pooler/dense/kernel", 0
    mean = None
    while os.path.exists(os.path.join(with_techniques, "model.ckpt-%d.index" % step)):
        reader = tf.train.load_checkpoint(os.path.join(with_techniques, "model.ckpt-%d" % step))
        weights = reader.get_tensor(name)
        if mean is None:
            mean = reader.get_tensor(name + "/ExponentialMovingAverage")
        else:  # the first steps count more, as TensorFlow's class does it
            decay = min(0.5, (1.0 + step) / (10.0 + step))
            mean = decay * mean + (1 - decay) * weights
        step += 1
    assert step == 7
    np.testing.assert_allclose(reader.get_tensor(name + "/ExponentialMovingAverage"), mean,
                               rtol=1e-4, atol=1e-7)
    assert np.abs(mean - weights).max() > 1e-4
    model = predictor.Predictor(with_techniques)
    with model.session.graph.as_default():
        kernel = [v for v in tf.global_variables() if v.op.name == name][0]
    np.testing.assert_allclose(model.session.run(kernel), mean, rtol=1e-4, atol=1e-7)


def test_a_run_with_techniques_goes_on_and_one_without_a_mean_starts_anew(
        with_techniques, call, data, tmp_path, caplog):
    folder = shutil.copytree(with_techniques, str(tmp_path / "copy"))
    call(folder, "--do_train", data_dir=data, ema_decay=0.5, num_train_epochs=2)
    assert "training from step 6 to 12" in caplog.text
    call(folder, "--do_train", data_dir=data)
    assert "training from step 0 to 6" in caplog.text
