"""Write src/text/unicode_scripts.inc: which code points the UnicodeScripts splitter of Hugging Face's
`tokenizers` takes for one script.

Usage: python tests/golden/make_scripts.py > src/text/unicode_scripts.inc
"""
import tokenizers
from tokenizers import pre_tokenizers

ANY = 255
SPLIT = pre_tokenizers.UnicodeScripts()


def together(a, b):
    return len(SPLIT.pre_tokenize_str(a + b)) == 1


def main():
    chars = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    anys = {c for c in chars if together("a", c) and together("\u3042", c)}
    scripts, runs, last = [], [], None  # an example of each script; (first, script)
    for c in chars:
        if c in anys:
            script = ANY
        elif last not in (None, ANY) and together(scripts[last], c):
            script = last
        else:
            script = next((i for i, example in enumerate(scripts) if together(example, c)), len(scripts))
            if script == len(scripts):
                scripts.append(c)
        if script != last:
            runs.append((ord(c), script))
        last = script
    assert len(scripts) < ANY
    print("/* unicode_scripts.inc - scripts of the UnicodeScripts splitter; generated, see unicode.h.\n"
          f" * Made by tests/golden/make_scripts.py with tokenizers {tokenizers.__version__}. Never edited by hand.\n */\n"
          "static const struct {\n    uint32_t first; /* of a run that goes to the next one */\n"
          f"    uint8_t script;\n}} script_runs[{len(runs)}] = {{")
    for i in range(0, len(runs), 6):
        print("    " + " ".join(f"{{0x{first:X}, {script}}}," for first, script in runs[i:i + 6]))
    print("};")


main()
