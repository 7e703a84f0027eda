"""Texts that tokenizers disagree about: a corpus of many scripts and kinds, and random strings.

Everything is a function of the seed, so that a difference can be looked at again.
"""
import base64
import glob
import os
import random
import sysconfig

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

CODE = [
    "int main(int argc, char **argv)\n{\n\treturn argc > 1 ? 0x1F : -1;  /* done */\n}\n",
    "for i in range(100):\n    if i % 3 == 0:\n        print(f\"{i:>5}\")\n\n\nclass A(B):\n    pass\n",
    "fn main() -> Result<(), Box<dyn Error>> {\n    let v: Vec<u8> = vec![0; 1_000];\n    Ok(())\n}\n",
    "package main\n\nfunc main() {\n\tx := map[string]int{\"a\": 1}\n\tfmt.Println(x)\n}\n",
    "const f = async (x) => { await g(x ?? `${x}`); }; // TODO\r\nexport default f;\r\n",
    "public static void main(String[] args) { System.out.println(args.length >>> 2); }\n",
    "SELECT a.id, COUNT(*) FROM t AS a WHERE a.x <> 'it''s' GROUP BY 1 HAVING COUNT(*) >= 10;\n",
    "#!/bin/sh\nset -e\nfor f in *.txt; do echo \"${f%.txt}\" | sed 's/[a-z]*/&/g' >> out; done\n",
    "<div class=\"a-b\"><p>x &amp; y</p></div>\n<!-- --><style>a::before{content:'\\201C'}</style>\n",
    "main :: IO ()\nmain = mapM_ (print . (*2)) [x | x <- [1..10], odd x] >>= \\_ -> return ()\n",
    "def f(a)\n  a.each_with_index { |x, i| puts \"#{i}: #{x}\" }\nend\n",
    "{\"a\": [1, 2.5e-10, null, true], \"b\\n\": {\"c\": \"\\u00e9\"}}\n",
    "\\begin{equation}\n  \\sum_{i=0}^{n} x_i^2 \\leq \\frac{1}{2}\n\\end{equation}\n",
]
PROSE = [
    "The quick brown fox doesn't jump over the lazy dog's bed; they've (all) seen it, I'll bet. ",
    "WE'RE SHOUTING: IT'S 12,345.67 DOLLARS! don'T, I'LL, you'Re. ",
    "L'été à Paris, où l'on déjeune; Ärger über Öl. İstanbul'da ığdır. Straße, ﬁn, ǅ. ",
    "日本語のテキスト、カタカナと漢字。ｆｕｌｌｗｉｄｔｈ　１２３「引用」。",
    "中文文本没有空格，标点符号也不同。第一章（二〇二四年）！",
    "한국어 문장입니다. 각각의 음절, ᄒᆞᆫ글. ",
    "السلام عليكم ورحمة الله وبركاته، كتاب١٢٣. ",
    "नमस्ते दुनिया, यह क्षत्रिय का परीक्षण है। १२३ ",
    "שלום עולם, מה שלומך? ",
    "Привет, мир! Как дела? Ёлка. ",
    "Γειά σου Κόσμε. ",
    "สวัสดีชาวโลก ภาษาไทยไม่มีช่องว่าง กำ ",
    "ქართული ენა. བོད་ཡིག ကမ္ဘာ ਪੰਜਾਬੀ தமிழ் ",
    "👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇩🇪🇯🇵 ❤️ 🫠 1️⃣ ",
    "e\u0301 a\u0308\u0323 \u1e9b\u0323 \u212b \uac00\u11a8 q\u0307\u0323 ",
    "x²y ½ Ⅷ ㋀ ٣ 𝒳𝟙 ʰ ",
]
ODD = [
    " " * 7, "\n" * 5, "\t\t \n  \r\n\r\n", "\u00a0\u2003\u3000\u0085\u180e", "0123456789" * 9, "=" * 77, "-" * 40,
    "\x00\x01\x7f\x1b[0m", "\u200d\u200c\ufeff\u2028", "▁▁▁", "Ġ Ċ", "<0x41>", "\ufffd", "a" * 99, "ab" * 50, "   x",
    "http://a.b/c?d=e&f=g#h", "__init__", "3.14e-10", "1,000,000", "C:\\dir\\x", "𠀀\U00031350\U0002ebf0",
]
POOL = list("aeiostAB Zz'’09 １٣½²_-.,;:!?()[]{}<>/\\|@#$%^&*+=~`\"\n\r\t \u00a0\u2003\u3000\u0085éßçñĀſKαΩжЖאبעمहिक्षกาあアー"
            "漢字語가각\u0301\u0308\u0323\u200d\ufe0f😀👍🏽👩🇩ǅʰⅧ𝒳𐐀\u0000\u180e\u2028\ufffd▁Ġ")
WORDS = ["the", " the", "'s", "'LL", "'re", " 12", "123", "  ", "\n\n", "\r\n", "don't", "日本", "नमस्ते", "://", ".\n",
         " //", "()", "++", "  \n", "\t\t", "re", "ſ", "'ſ", " a", "word ", "<0x0A>"]


def binary_looking(rnd, n):
    return "".join(chr(rnd.choice((rnd.randrange(32), rnd.randrange(256), rnd.randrange(0x800)))) for _ in range(n))


def files(limit):
    """Sources and documents of this repository, and Python's own library."""
    names = sorted(glob.glob(f"{ROOT}/src/**/*.[ch]", recursive=True) + glob.glob(f"{ROOT}/**/*.md", recursive=True))
    names += sorted(glob.glob(sysconfig.get_paths()["stdlib"] + "/*.py"))
    total = 0
    for name in names:
        with open(name, encoding="utf-8", errors="replace") as f:
            text = f.read()
        total += len(text)
        if total > limit:
            return
        yield text


def corpus(size, seed=1):
    """About `size` bytes of texts of all kinds, the shortest first."""
    rnd = random.Random(seed)
    out, total = ["", " ", "  ", "a", " a", "\n"] + CODE + PROSE + ODD, 0
    for text in files(size // 2):
        out.append(text)
        total += len(text.encode())
    while total < size:
        parts = rnd.choices(CODE + PROSE * 2 + ODD, k=rnd.randrange(2, 400))
        if rnd.random() < .3:
            parts.append(base64.b64encode(rnd.randbytes(rnd.randrange(3000))).decode())
        if rnd.random() < .3:
            parts.append(binary_looking(rnd, rnd.randrange(500)))
        rnd.shuffle(parts)
        out.append("".join(parts))
        total += len(out[-1].encode())
    return sorted(out, key=len)


def strings(n, added, seed=1):
    """`n` short strings: awkward characters, pieces of words, added tokens, any code point."""
    rnd = random.Random(seed)
    for _ in range(n):
        s = []
        for _ in range(rnd.randint(1, 20)):
            r = rnd.random()
            if r < .55:
                s.append(rnd.choice(POOL) * rnd.choice((1, 1, 1, 2, 3)))
            elif r < .85:
                s.append(rnd.choice(WORDS))
            elif r < .93 and added:
                token = rnd.choice(added)
                s.append(token if rnd.random() < .8 else token[:rnd.randrange(len(token) + 1)])
            else:
                c = rnd.randint(0, 0x33000) if rnd.random() < .8 else rnd.randint(0, 0x10ffff)
                s.append(chr(c) if not 0xd800 <= c < 0xe000 else "A")
        yield "".join(s)


def fifty():
    """The 50 texts of the comparison with llama.cpp: code, CJK, emoji, spaces, digits."""
    rnd = random.Random(50)
    out = CODE + PROSE + ["".join(rnd.choices(CODE + PROSE + ODD[:3] + ODD[4:7], k=6)) for _ in range(50)]
    return out[:50]
