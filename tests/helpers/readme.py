"""The commands that stand in the documents."""

import glob
import os
import re
import shlex

from helpers.toys import ROOT


def text_of(name):
    with open(os.path.join(ROOT, name), encoding="utf-8") as stream:
        return stream.read()


def commands_of(text):
    """The commands of the ```bash blocks, continued lines joined, exported names filled in."""
    exported, found = {}, []
    for block in re.findall(r"^```bash\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        for line in block.replace("\\\n", " ").split("\n"):
            for name, value in exported.items():
                line = line.replace("$" + name, value)
            exported.update(re.findall(r"^export (\w+)=(\S+)$", line))
            if line.strip() and not line.startswith("#"):
                found.append(" ".join(line.split()))
    return found


def python_call(command):
    """(script's name, its arguments) of a command, or None for one that calls no script here."""
    words = [word for word in shlex.split(command) if word not in ("nohup", "&")]
    while words and re.match(r"\w+=", words[0]):
        del words[0]
    if words[0] in ("python", "python3") and words[1].endswith(".py"):
        return words[1][:-len(".py")], words[2:]
    return None


def pages_of(language):
    """The documents of a language, "zh" or "en", by subject: name -> text."""
    found = {os.path.basename(path)[:-len(".md")]: text_of(path) for path in sorted(
        glob.glob(os.path.join(ROOT, "docs", language, "*.md")))}
    return dict(found, README=text_of({"zh": "README.md", "en": "README_EN.md"}[language]))


PAGES = {language: pages_of(language) for language in ("zh", "en")}
COMMANDS = list(dict.fromkeys(  # each once, whatever stands on several pages
    command for page in PAGES["zh"].values() for command in commands_of(page)))
