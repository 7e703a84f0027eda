"""docs [--check] QUERN - write the option tables of docs/verbs/VERB.md out of the program itself.

Each page has prose by hand and one block between two marks, which is replaced. With --check nothing
is written; a page that is missing or out of date is an error.
"""
import json
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BEGIN, END = "<!-- options: made by scripts/docs.py -->\n", "<!-- end of options -->\n"


def quern(program, *argv):
    return subprocess.run([program, *argv], check=True, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL,
                          text=True).stdout


def renewed(page, block):
    """The page with its block replaced, or None if the marks are missing."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    return before + BEGIN + block + END + after if begin and end else None


def main(argv):
    check = "--check" in argv
    program = os.path.abspath([a for a in argv if a != "--check"][0])
    wrong = 0
    for verb in json.loads(quern(program, "help", "--json"))["verbs"]:
        name = verb["name"]
        path = os.path.join(ROOT, "docs", "verbs", name + ".md")
        page = open(path, encoding="utf-8").read() if os.path.exists(path) else ""
        if not page and not check:
            page = f"# quern {name}\n\n{verb['summary'].capitalize()}.\n\n{BEGIN}{END}"
        new = renewed(page, quern(program, "help", "--markdown", name))
        if new == page:
            continue
        if new is None or check:
            print(f"docs/verbs/{name}.md is missing, lacks its marks, or is out of date: run "
                  f"python3 scripts/docs.py build/release/quern")
            wrong += 1
        else:
            with open(path, "w", encoding="utf-8") as f:
                f.write(new)
    return 1 if wrong else 0


sys.exit(main(sys.argv[1:]))
