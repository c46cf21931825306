"""run_mrc.py end to end on toy passages: train, resume, evaluate, predict, answer, refuse."""

import io
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from helpers.killed_runs import run_until_killed
from helpers.toy_reading import ASKED, toy_passages, write_squad
from helpers.toy_records import run_script
from helpers.toys import ROOT, TOY_CONFIG, TOY_SENTENCES, toy_tokens, write_text

import run_mrc
from cli import UserError
from fine_tuning import predictor
from fine_tuning.reading_predictor import ReadingPredictor
from weights import checkpoints

LENGTHS = dict(max_seq_length=40, doc_stride=12, max_query_length=12, max_answer_length=8)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """40 questions to train on and to be asked again, 8 of them in a test file.

    A passage needs two windows or three.
    """
    folder = tmp_path_factory.mktemp("data")
    for name, passages in (("train", toy_passages(40)), ("dev", toy_passages(40)),
                           ("test", toy_passages(8, 3)), ("eightfold", toy_passages(320))):
        write_squad(folder / (name + ".json"), *passages)
    return str(folder)


@pytest.fixture(scope="module")
def small_config(tmp_path_factory):
    config = dict(TOY_CONFIG, vocab_size=len(toy_tokens()), initializer_range=0.1,
                  num_hidden_layers=1)
    return write_text(tmp_path_factory.mktemp("config") / "config.json", json.dumps(config))


def flags_of(toy_vocab, small_config, output, **changes):
    settings = dict(LENGTHS, task_name="own", vocab_file=toy_vocab, output_dir=str(output),
                    bert_config_file=small_config, train_batch_size=16, learning_rate=0.003,
                    num_train_epochs=1)
    settings.update(changes)
    return ["--%s=%s" % item for item in settings.items() if item[1] is not None]


@pytest.fixture(scope="module")
def call(toy_vocab, small_config):
    """Runs the script with the toy model's files and further flags."""
    def run(output, *switches, **changes):
        run_script(run_mrc, *(flags_of(toy_vocab, small_config, output, **changes)
                              + list(switches)))
    return run


@pytest.fixture(scope="module")
def trained(tmp_path_factory, call, data):
    """A model that has learned the toy questions by heart, with --save_best."""
    folder = tmp_path_factory.mktemp("trained")
    call(folder, "--do_train", "--do_eval", "--save_best", num_train_epochs=2, train_batch_size=8,
         learning_rate=0.01, train_file=os.path.join(data, "eightfold.json"))
    return str(folder)


@pytest.fixture
def copied(trained, tmp_path):
    return shutil.copytree(trained, str(tmp_path / "copy"))


def read_json(folder, name):
    with io.open(os.path.join(str(folder), name), encoding="utf-8") as stream:
        return json.load(stream)


# --- training ---------------------------------------------------------------------------------


def test_forty_questions_are_learned_by_heart_and_the_best_is_kept(trained):
    report = read_json(trained, "eval_results.json")
    assert (report["questions"], report["unanswered"]) == (40, 0)
    assert report["exact_match"] >= 95 and report["f1"] >= report["exact_match"]
    with io.open(os.path.join(trained, "eval_results.txt"), encoding="utf-8") as stream:
        assert "exact_match = %s\n" % report["exact_match"] in stream.read()
    with io.open(os.path.join(trained, "evaluations.tsv"), encoding="utf-8") as stream:
        lines = [line.split("\t") for line in stream.read().splitlines()]
    assert lines[0] == ["step", "f1", "exact_match"] and len(lines) == 3
    best = os.path.join(trained, "best")
    assert read_json(best, "eval_results.json")["f1"] == max(float(line[1]) for line in lines[1:])
    assert predictor.chosen_checkpoint(trained) == tf.train.latest_checkpoint(best)
    description = read_json(trained, "reading.json")
    assert (description["task_name"], description["doc_stride"]) == ("own", 12)
    assert ReadingPredictor(best).description["head"] == "reading"


def test_a_killed_training_goes_on_and_the_end_has_nothing_to_train(
        tmp_path, data, call, toy_vocab, small_config, caplog):
    folder = str(tmp_path / "out")
    run_until_killed(run_mrc, 4, ["--do_train"] + flags_of(
        toy_vocab, small_config, folder, data_dir=data, save_checkpoints_steps=4))
    assert checkpoints.step_of(folder) == 4
    with caplog.at_level("INFO"):
        for _ in range(2):
            call(folder, "--do_train", data_dir=data)
    assert "training from step 4 to 7" in caplog.text  # 108 windows in batches of 16
    assert "nothing to train: {} is at step 7".format(folder) in caplog.text


def test_other_lengths_put_the_old_model_aside(copied, data, call, caplog):
    with caplog.at_level("INFO"):
        call(copied, "--do_train", data_dir=data, train_batch_size=64, doc_stride=20)
    assert "is moved to %s" % os.path.join(copied, "replaced-1") in caplog.text
    assert os.path.exists(os.path.join(copied, "replaced-1", "reading.json"))
    assert "training from step 0" in caplog.text


# --- evaluation and prediction ----------------------------------------------------------------


def test_each_question_is_answered_once_by_a_slice_of_its_passage(trained, data, capsys):
    found = []
    for batch_size in (8, 3):
        run_script(run_mrc, "--output_dir=" + trained, "--do_predict",
                   "--predict_batch_size=%d" % batch_size)
        found.append(read_json(trained, "predictions.json"))
    assert found[0] == found[1]
    assert list(found[0]) == ["Q%d" % number for number in range(3, 11)]
    assert "exact_match = 100.0, f1 = 100.0" in capsys.readouterr().out
    nbest = read_json(trained, "nbest_predictions.json")
    contexts = {questions[0][0]: context for context, questions in toy_passages(8, 3)}
    for name, answers in nbest.items():
        assert answers[0]["text"] == found[0][name]
        assert sum(one["probability"] for one in answers) == pytest.approx(1)
        for one in answers:
            assert one["text"] == contexts[name][one["start"]:one["end"]]


def test_evaluation_is_the_same_at_any_batch(trained):
    found = []
    for size in (1, 7, 100):
        run_script(run_mrc, "--output_dir=" + trained, "--do_eval", "--eval_split=test",
                   "--eval_batch_size=%d" % size)
        found.append(read_json(trained, "eval_results_test.json"))
    assert found[0] == found[1] == found[2] and found[0]["questions"] == 8


def test_stride_and_batch_change_no_answer_of_a_passage_that_fits(trained):
    pairs = [(question + "？", "".join(TOY_SENTENCES[start:start + 2]))
             for start in range(0, 12, 2) for _, question in ASKED]
    answers = [ReadingPredictor(trained, batch_size).predict(pairs) for batch_size in (1, 5, 48)]
    wider = ReadingPredictor(trained)
    wider.encoder.doc_stride = 3
    answers.append(wider.predict(pairs))
    for others in answers[1:]:
        for one, other in zip(answers[0], others):
            assert one[0].text == other[0].text
            assert one[0].probability == pytest.approx(other[0].probability, abs=1e-5)
    assert len(answers[0]) == len(pairs)


def test_a_file_without_answers_and_questions_without_a_known_word_are_answered(
        trained, tmp_path, capsys):
    path = write_squad(tmp_path / "more.json", ("龘龘龘 tea 龘", [("1", "？", []), ("2", "", [])]),
                       ("", [("3", "桥在哪年建成？", [])]))
    run_script(run_mrc, "--output_dir=" + trained, "--do_predict", "--predict_file=" + path)
    found = read_json(trained, "predictions.json")
    assert list(found) == ["1", "2", "3"] and found["3"] == "" and found["1"] in "龘龘龘 tea 龘"
    assert "exact_match" not in capsys.readouterr().out


def test_a_fresh_process_answers_a_pipe_in_any_locale(trained):
    context, questions = toy_passages(1)[0]
    text = "{}\t{}\n\n".format(questions[0][1], context)
    environment = dict(os.environ, LC_ALL="C", PYTHONUTF8="0", PYTHONIOENCODING="ascii")
    command = [sys.executable, os.path.join(ROOT, "run_mrc.py"), "--output_dir=" + trained,
               "--do_predict", "--predict_file=-"]
    done = subprocess.run(command, input=text.encode("utf-8"), stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, env=environment)
    assert done.returncode == 0, done.stderr.decode("utf-8")
    lines = done.stdout.decode("utf-8").split("\n")
    assert len(lines) == 3 and lines[1:] == ["", ""]
    answer = json.loads(lines[0])
    assert answer["text"] == "2019" == context[answer["start"]:answer["end"]]


def test_a_line_that_does_not_read_is_answered_by_the_reason(trained):
    lines = "\n谁？渔民\n".encode("utf-8") + b"\xff\t1\n" + "谁？\t渔民".encode("utf-8")
    found = list(ReadingPredictor(trained).answer_lines(io.BytesIO(lines), "utf-8"))
    assert [is_answer for _, is_answer in found] == [True, False, False, True]
    assert "standard input, line 2: a question, a tab" in json.loads(found[1][0])["error"]
    assert "line 3" in json.loads(found[2][0])["error"]
    assert found[0][0] == "" and json.loads(found[3][0])["text"] in "渔民"


def test_a_trained_checkpoint_answers_from_a_new_folder(trained, tmp_path, data, call):
    call(tmp_path, "--do_eval", data_dir=data,
         init_checkpoint=predictor.chosen_checkpoint(trained))
    assert read_json(tmp_path, "eval_results.json")["exact_match"] >= 95


def test_unanswerable_questions_are_learned(tmp_path, call):
    rows = []
    for number, (context, questions) in enumerate(toy_passages(16)):
        rows.append((context, questions if number % 2 else [
            (questions[0][0], "今天？", [])]))
    for name in ("train", "dev"):
        write_squad(tmp_path / (name + ".json"), *rows)
    with pytest.raises(UserError, match="question Q0: no answers; .* --null_answers"):
        call(tmp_path / "out", "--do_train", data_dir=str(tmp_path))
    call(tmp_path / "out", "--do_train", "--do_eval", "--do_predict", "--null_answers",
         data_dir=str(tmp_path), num_train_epochs=40,
         predict_file=str(tmp_path / "dev.json"))
    found = read_json(tmp_path / "out", "predictions.json")
    assert [found["Q%d" % number] for number in range(0, 16, 2)] == [""] * 8
    assert read_json(tmp_path / "out", "eval_results.json")["exact_match"] >= 90


# --- export -----------------------------------------------------------------------------------


def test_export_serves_the_same_answers(copied, data, capsys):
    run_script(run_mrc, "--output_dir=" + copied, "--do_export")
    lines = capsys.readouterr().out.splitlines()
    assert "export/reading/1: on 64 rows the probabilities differ by at most" in lines[0]
    if tf.__version__ >= "2":
        assert [line.split(":")[0] for line in lines[1:]] == [
            "reading.tflite", "reading_dynamic.tflite"]
    served = ReadingPredictor(os.path.join(copied, "export", "reading"))
    assert sorted(served.outputs) == ["end_logits", "start_logits"]
    pairs = [(questions[0][1], context) for context, questions in toy_passages(5)]
    for one, other in zip(served.predict(pairs), ReadingPredictor(copied).predict(pairs)):
        assert [found.text for found in one] == [found.text for found in other]
        np.testing.assert_allclose([found.score for found in one],
                                   [found.score for found in other], atol=1e-5)


# --- refusals ---------------------------------------------------------------------------------


@pytest.mark.parametrize("changes, message", [
    (dict(task_name="squad"), "--task_name: unknown task 'squad'; known: cmrc2018, drcd, own"),
    (dict(task_name="cmrc2018"), "no train file for the task cmrc2018 .*cmrc2018_train.json"),
    (dict(train_file="/nowhere.json"), "--train_file: no file '/nowhere.json'"),
    (dict(data_dir=None), "--data_dir is required"),
    (dict(doc_stride=30), "--max_seq_length=40 leaves 25 tokens .* --doc_stride=30"),
    (dict(max_seq_length=129), "--max_seq_length is 129, above the config's .* 128"),
    (dict(vocab_file=None), "--vocab_file is required"),
    (dict(num_train_epochs=0), "--num_train_epochs is 0.0, must be above 0"),
    (dict(init_checkpoint="/nowhere/model.ckpt"), "no checkpoint '/nowhere/model.ckpt'"),
])
def test_bad_settings_fail_before_any_work(tmp_path, data, call, changes, message):
    settings = dict(dict(data_dir=data), **changes)
    with pytest.raises(UserError, match=message):
        call(tmp_path / "out", "--do_train", **settings)
    assert not os.path.exists(str(tmp_path / "out" / "reading.json"))


def test_bad_data_fail_with_file_and_question(tmp_path, call):
    write_squad(tmp_path / "train.json", ("渔民上岸", [("7", "谁？", [("船民", 0)])]))
    with pytest.raises(UserError, match=r"train\.json: 1 of 1 questions .* question 7, answer"):
        call(tmp_path / "out", "--do_train", data_dir=str(tmp_path))
    assert not os.listdir(str(tmp_path / "out" / "encoded"))


def test_a_folder_with_another_head_is_refused(tmp_path, trained, data, call):
    with pytest.raises(UserError, match="with the head 'reading', not 'classifier'"):
        predictor.Predictor(trained)
    write_text(tmp_path / "classifier.json", "{}")
    with pytest.raises(UserError, match="'classifier', this script has 'reading'"):
        call(tmp_path, "--do_train", data_dir=data)


def test_models_that_are_not_fine_tuned_fail_clearly(tmp_path, data, call):
    with pytest.raises(UserError, match="holds no checkpoint and there is no --init_checkpoint"):
        call(tmp_path / "out", "--do_eval", data_dir=data)
    with pytest.raises(UserError, match="none of --do_train, --do_eval, --do_predict"):
        call(tmp_path / "out", data_dir=data)
