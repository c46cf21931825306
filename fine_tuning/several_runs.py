"""The same fine-tuning several times: over seeds, whose best model is kept, or over folds.

In: the flags of a run.  Out in output_dir: run_<seed>/ or fold_<k>/, a whole run each; runs.json
and runs.txt with each one's figures on dev, their mean and spread; of several seeds the best model.

One seed says little: on a small task the spread over seeds is often larger than what a change of
the rate brings (Dodge et al., arXiv 2002.06305).
"""

import json
import os
import statistics

import tensorflow.compat.v1 as tf

from cli import UserError, require_within
from fine_tuning import fine_tuner, predictor

SUMMARY = "runs"
MOST_RUNS = 100


def check_folds(settings):
    """Raises UserError for a number of folds that cannot be, or a job that it cannot have."""
    require_within(settings, 2, MOST_RUNS, "num_folds")
    for name, is_set in (("num_runs", settings.num_runs > 1), ("do_export", settings.do_export),
                         ("save_best", settings.save_best), ("patience", settings.patience),
                         ("predict_file=-", settings.predict_file == "-")):
        if is_set:
            raise UserError("--num_folds={} makes several models and does not go with "
                            "--{}".format(settings.num_folds, name))


def carry_out_over_seeds(settings, description, do_jobs, figures):
    """Does the jobs of a script once, or, with --num_runs, once for each seed and with the best.

    Args:
      settings: of the flags.  description: what output_dir says of itself, or None.
      do_jobs: function(settings, description) -> exit code: trains, evaluates, predicts, exports.
      figures: names of the figures on dev to sum up, the one to choose by first.
    Returns:
      the exit code.
    """
    if settings.num_runs == 1 or not settings.do_train:
        return do_jobs(settings, description)
    require_within(settings, 1, MOST_RUNS, "num_runs")
    seeds = range(settings.random_seed, settings.random_seed + settings.num_runs)
    best = trained_runs(settings, do_jobs, figures, [
        ("run_{}".format(seed), {"random_seed": seed}) for seed in seeds])
    predictor.copy_model(predictor.model_files(os.path.join(settings.output_dir, best)),
                         settings.output_dir)
    rest = fine_tuner.changed(settings, do_train=False, do_eval=settings.eval_split == "test" and
                   settings.do_eval, init_checkpoint=None)
    if not (rest.do_eval or rest.do_predict or rest.do_export):
        return 0
    return do_jobs(rest, predictor.read_description(settings.output_dir))


def trained_runs(settings, do_jobs, figures, runs):
    """Trains each run in a folder of its own and evaluates it on dev; writes and says the summary.

    Args:
      settings, do_jobs, figures: see carry_out_over_seeds.
      runs: (name of the folder, settings of its own) of each.
    Returns:
      the name of the best run.
    """
    reports = {}
    for name, own in runs:
        folder = os.path.join(settings.output_dir, name)
        tf.logging.info("%s: %s", folder, ", ".join("%s = %s" % pair for pair in own.items()))
        do_jobs(fine_tuner.changed(
            settings, output_dir=folder, do_eval=True, eval_split="dev", do_export=False,
            do_predict=settings.do_predict and settings.predict_file != "-", num_runs=1, **own),
            None)
        with tf.io.gfile.GFile(os.path.join(folder, "eval_results.json"), "rb") as stream:
            report = json.loads(stream.read().decode("utf-8"))
        reports[name] = {figure: report[figure] for figure in figures}
    summary = summary_of(reports, figures)
    fine_tuner.publish(settings.output_dir, SUMMARY, summary, summary_text(summary))
    return summary["best"]


def summary_of(reports, figures):
    """A dict for JSON: each run's figures, the best run, mean and standard deviation.

    reports: {run: {figure: value}}.  figures: their names, the one to choose by first.
    """
    columns = {figure: [report[figure] for report in reports.values()] for figure in figures}
    return {"runs": reports, "best": max(reports, key=lambda name: reports[name][figures[0]]),
            "mean": {figure: statistics.mean(values) for figure, values in columns.items()},
            "standard_deviation": {
                figure: statistics.stdev(values) for figure, values in columns.items()}}


def summary_text(summary):
    """A summary_of as lines of text."""
    names = list(summary["mean"])
    rows = list(summary["runs"].items()) + [
        (name, summary[name]) for name in ("mean", "standard_deviation")]
    lines = ["\t".join(["run"] + names)] + [
        "\t".join([name] + ["{:.4f}".format(row[figure]) for figure in names])
        for name, row in rows]
    return "\n".join(lines) + "\nbest = {}\n".format(summary["best"])
