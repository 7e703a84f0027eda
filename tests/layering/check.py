"""The rules of the house that a script can see: include direction, sizes, docstrings, paths.

Prints one line per finding and ends with "N passed, N failed", one per rule. Python's standard
library only. Run from anywhere: python3 tests/layering/check.py
"""
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

# What each room may include besides itself (design, section 3).
STACK = ["core", "format", "compute", "text", "model", "cache", "sample", "engine", "serve", "cli"]
ALLOWED = {
    "core": [],
    "format": ["core"],
    "compute": ["core", "format"],
    "text": ["core"],
    "model": ["core", "format", "compute", "text"],
    "cache": ["core", "format", "compute", "model"],
    "sample": ["core", "format"],
    "engine": ["core", "format", "compute", "text", "model", "cache", "sample"],
    "store": ["core", "format"],
    "tune": ["core", "format", "text"],
    "serve": ["core", "format", "compute", "text", "model", "cache", "sample", "engine", "store"],
    "cli": STACK + ["store", "tune"],
}
MAX_FUNCTION, MAX_LONG_FUNCTION, MAX_FILE, MAX_LINE = 70, 150, 1500, 120
# Folders of one machine must not get into the tree; these are spelled so that this file is clean.
MACHINE_PATHS = re.compile(r"(?<![\w.~$}])/(?:" + "|".join(["wor" + "k", "roo" + "t", "hom" + "e/[a-z]", "tm" + "p/ora",
                                                            "tm" + "p/q"]) + r")(?:/|\b)")
UNFINISHED = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")


def tracked(*patterns):
    """Files that git knows or would take, without deleted ones."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "--", *patterns], cwd=ROOT, check=True,
                            stdout=subprocess.PIPE, text=True).stdout.split("\n")
    return sorted(f for f in listed if f and os.path.isfile(os.path.join(ROOT, f)))


def lines_of(name):
    with open(os.path.join(ROOT, name), encoding="utf-8", errors="replace") as f:
        return f.read().split("\n")


def c_files():
    return tracked("src/*.c", "src/*.h", "include/*.h", "tests/*.c", "tests/*.h")


def include_direction():
    """A room includes itself and the rooms below it."""
    for name in tracked("src/*.c", "src/*.h"):
        room = name.split("/")[1]
        if room not in ALLOWED:
            yield f"{name}: the room {room} is not in the picture of design 3"
            continue
        for i, line in enumerate(lines_of(name), 1):
            match = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
            if not match:
                continue
            target = match.group(1).split("/")[0]
            if "/" not in match.group(1):
                if match.group(1) not in ("quern.h",) and not match.group(1).endswith(".inc"):
                    yield f'{name}:{i}: write "{room}/{match.group(1)}" (room and file)'
            elif target != room and target not in ALLOWED[room]:
                yield f"{name}:{i}: {room} may not include {target}"


def file_length():
    """Files stop at 1500 lines."""
    for name in c_files():
        n = len(lines_of(name))
        if n > MAX_FILE:
            yield f"{name}: {n} lines, at most {MAX_FILE}"


def line_length():
    """Lines stop at 120 columns; no tabs."""
    for name in c_files():
        for i, line in enumerate(lines_of(name), 1):
            if len(line) > MAX_LINE:
                yield f"{name}:{i}: {len(line)} columns, at most {MAX_LINE}"
            if "\t" in line:
                yield f"{name}:{i}: a tab"


def functions(lines):
    """(start, end, has LONG above) of every function: a column-0 brace to the closing one."""
    start = None
    for i, line in enumerate(lines):
        if line == "{" or (start is None and re.match(r"[A-Za-z_].*\)\s*\{\s*$", line)):
            start = i
        elif line.startswith("}") and start is not None:
            if line == "}":
                yield start, i, "LONG:" in "\n".join(comment_above(lines, start))
            start = None


def comment_above(lines, at):
    """The lines of the signature and of the comment right above it."""
    first = at
    while first > 0 and lines[first - 1].strip() and not lines[first - 1].startswith("}"):
        first -= 1
    return lines[first:at]


def function_length():
    """Functions stop at 70 lines; at 150 with a reason behind LONG: right above."""
    for name in c_files():
        lines = lines_of(name)
        for start, end, is_long in functions(lines):
            n = end - start + 1
            limit = MAX_LONG_FUNCTION if is_long else MAX_FUNCTION
            if n > limit:
                yield f"{name}:{start + 1}: a function of {n} lines, at most {limit}"


def strip_nested(text):
    """Remove what stands in braces at any depth (struct bodies, inline functions), keep the lines."""
    out, depth = [], 0
    for c in text:
        if c == "{":
            depth += 1
        if depth == 0 or c == "\n":
            out.append(c)
        if c == "}":
            depth -= 1
    return "".join(out)


PROTOTYPE = re.compile(r"^(?:[A-Za-z_][\w\s]*[\s*]+)((?:qn|quern)_\w+)\s*\(")
SAYS_FAILURE = re.compile(r"Errors?:|no\s+(?:\*\s+)?failure|\[[^\]\n]+\]")


def header_comments(text):
    """The text with every comment replaced by a mark of one line, and the comments by mark."""
    comments = []

    def mark(match):
        comments.append(match.group(0))
        return f"@{len(comments) - 1}@" + "\n" * match.group(0).count("\n")
    return re.sub(r"/\*.*?\*/", mark, text, flags=re.S), comments


def undocumented(name):
    """Names of exported prototypes whose group of adjacent lines has no docstring."""
    marked, comments = header_comments("\n".join(lines_of(name)))
    marked = strip_nested(re.sub(r'extern "C" \{', "", marked))
    current = ""
    for line in marked.split("\n"):
        marks = re.findall(r"@(\d+)@", line)
        code = re.sub(r"@\d+@", "", line).strip()
        if marks and not code:
            current = comments[int(marks[-1])]
        elif PROTOTYPE.match(line) and not re.match(r"typedef|static", line):
            here = current + "".join(comments[int(m)] for m in marks)
            if not SAYS_FAILURE.search(here):
                yield PROTOTYPE.match(line).group(1)


def docstrings():
    """Exported prototypes say what fails, or that nothing does, or the shapes."""
    for name in tracked("src/*.h", "include/*.h"):
        for symbol in undocumented(name):
            yield f"{name}: {symbol} has no docstring with \"Errors:\", \"(no failure)\" or a shape"


def public_headers():
    """Headers that another room includes."""
    found = set(tracked("include/*.h"))
    for name in tracked("src/*.c", "src/*.h"):
        for line in lines_of(name):
            match = re.match(r'\s*#\s*include\s+"(\w+)/([^"]+)"', line)
            if match and match.group(1) != name.split("/")[1]:
                found.add(f"src/{match.group(1)}/{match.group(2)}")
    return sorted(found)


def header_heads():
    """Headers open with what they are for; public ones also say which threads may call."""
    public = public_headers()
    for name in tracked("src/*.h", "include/*.h"):
        head = "\n".join(lines_of(name)[:40])
        if not head.startswith("/*"):
            yield f"{name}: does not open with a comment"
        elif name in public and "hread" not in head.split("*/")[0]:
            yield f"{name}: the head does not say which thread may call"


def machine_paths():
    """Nothing names this machine's folders."""
    for name in tracked():
        if name.endswith((".safetensors", ".gguf", ".bin", ".png")) or "/seeds/" in name:
            continue
        for i, line in enumerate(lines_of(name), 1):
            if MACHINE_PATHS.search(line):
                yield f"{name}:{i}: names a folder of one machine"


def unfinished_words():
    """No marks of unfinished work in the sources."""
    for name in tracked("src", "include", "scripts", "web"):
        for i, line in enumerate(lines_of(name), 1):
            if UNFINISHED.search(line):
                yield f"{name}:{i}: {line.strip()[:80]}"


def data_path():
    """Every step of docs/dataflow.md has its function, and the function says so."""
    text = {name: "\n".join(lines_of(name)) for name in tracked("src/*.c", "src/*.h")}
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \| `([^`]+)` \|", "\n".join(lines_of("docs/dataflow.md")), flags=re.M)
    if [int(n) for n, _, _ in rows] != list(range(1, 13)):
        yield "docs/dataflow.md: the table does not have the steps 1 to 12"
    for number, function, name in rows:
        if not re.search(rf"^[a-z].*\b{function}\(", text.get(name, ""), flags=re.M):
            yield f"docs/dataflow.md: step {number}: {name} has no function {function}"
        if not any(re.search(rf"Step {number} of the data path\.", t) for t in text.values()):
            yield f"docs/dataflow.md: step {number}: no function carries \"Step {number} of the data path.\""


RULES = [include_direction, file_length, line_length, function_length, docstrings, header_heads, machine_paths,
         unfinished_words, data_path]


def main():
    failed = 0
    for rule in RULES:
        findings = list(rule())
        failed += bool(findings)
        for finding in findings:
            print(f"{rule.__name__}: {finding}")
    print(f"{len(RULES) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
