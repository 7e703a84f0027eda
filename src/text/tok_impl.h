/* tok_impl.h - the inside of a tokenizer, shared by the tok_*, pretok_* and detok files only.
 *
 * Reading order: tok_parse.c fills these structs from tokenizer.json; tok_encode.c runs a text
 * through them (added tokens, normalizers, pre-tokenizers, model, post-processor); tok_decode.c
 * goes the other way. Everything here is immutable after parsing except the pool of scratch
 * objects, of which every running encode holds one.
 */
#ifndef QN_TEXT_TOK_IMPL_H
#define QN_TEXT_TOK_IMPL_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <pthread.h>

#include "core/arena.h"
#include "core/file.h"
#include "text/tokenizer.h"

enum {
    TOK_MAX_FILE = 256 << 20,       /* bytes of tokenizer.json */
    TOK_MAX_CONFIG = 64 << 20,      /* bytes of tokenizer_config.json */
    TOK_MAX_IDS = 4 << 20,          /* largest id + 1 */
    TOK_MAX_MERGES = 16 << 20,      /* merge rules */
    TOK_MAX_TOKEN = 64 << 10,       /* bytes of one token */
    TOK_MAX_ADDED = 1 << 20,        /* added tokens */
    TOK_MAX_STAGES = 64,            /* steps of one pipeline part, sequences flattened */
    TOK_MAX_DEPTH = 16,             /* nesting of sequences */
    TOK_MAX_TEXT = 1 << 30,         /* bytes of one text to encode */
    TOK_MAX_POST = 64,              /* items that a post-processor adds */
    TOK_CACHE_FROM = 256 << 10      /* bytes of a tokenizer.json worth a cache */
};

/* ---- strings and pieces ---- */

typedef struct tok_str {
    const char *s; /* UTF-8; NULL when the field is absent */
    size_t n;      /* bytes */
} tok_str;

typedef struct tok_piece {
    uint32_t at, len; /* bytes in the current text */
    bool origin;      /* starts at the very beginning of the caller's text */
} tok_piece;

typedef struct tok_pieces {
    tok_piece *v;
    size_t n, cap;
    bool failed;
} tok_pieces;

/* ---- vocabulary: flat arrays, so that a mapped cache can be used in place ---- */

typedef struct tok_vocab {
    uint32_t n_ids;         /* largest id + 1 */
    uint32_t n_entries;     /* tokens */
    const uint32_t *offs;   /* [n_ids + 1] byte offsets in text; equal neighbours: no token */
    const char *text;       /* every token followed by a NUL */
    const uint32_t *slots;  /* [slot_mask + 1] open addressing by token hash: id + 1, 0 empty */
    uint32_t slot_mask;
    const double *scores;   /* [n_ids], Unigram only */
} tok_vocab;

typedef struct tok_merge {
    uint32_t left, right; /* ids of the parts; left QN_NO_TOKEN: empty slot */
    uint32_t rank;        /* lower merges first */
    uint32_t id;          /* the merged token */
} tok_merge;

uint32_t tok_vocab_find(const tok_vocab *v, const char *s, size_t n);
tok_str tok_vocab_token(const tok_vocab *v, uint32_t id);

/* ---- byte-level alphabet (tok_alphabet.c) ---- */

uint16_t tok_byte_to_char(uint8_t b);           /* code point, below 0x144 */
int tok_char_to_byte(unsigned cp);              /* -1 outside the alphabet */
void tok_bytes_to_alphabet(const char *s, size_t n, qn_buf *out);
bool tok_alphabet_to_bytes(const char *s, size_t n,
                           qn_buf *out); /* false, out unchanged, if outside */

/* ---- patterns (pretok_regex.c) ---- */

typedef struct tok_regex {
    pcre2_code *code;
    pcre2_match_context *ctx; /* has the JIT stack */
} tok_regex;

typedef struct tok_scratch tok_scratch;

/* Compile an Oniguruma pattern with PCRE2. The caller releases it. Errors: QN_FORMAT,
 * QN_UNSUPPORTED, QN_NOMEM. */
qn_code tok_regex_compile(tok_regex *re, tok_str pattern, qn_err *err);
void tok_regex_release(tok_regex *re);
/* The next match in s[0..n) at or after `from`. 1 found, 0 none, -1 failed (err set). */
int tok_regex_next(const tok_regex *re, tok_scratch *sc, const char *s, size_t n, size_t from,
                   size_t *start, size_t *end, qn_err *err);

/* ---- hand-written splitters for known patterns (pretok_scan.c) ---- */

/* The end of the first piece of s[0..n), n > 0. */
typedef size_t (*tok_scan_fn)(const char *s, size_t n);
/* Every pattern that has one; ends with a NULL pattern. */
typedef struct tok_known_pattern {
    const char *pattern;
    tok_scan_fn scan;
    bool gaps;      /* some of its pieces are text that the pattern does not match */
    bool ends_word; /* a piece ends before a space that a letter precedes */
} tok_known_pattern;
extern const tok_known_pattern tok_known_patterns[];
/* The entry of an exact pattern text, or NULL. */
const tok_known_pattern *tok_scan_for(tok_str pattern);
extern const char tok_pattern_gpt2[]; /* the pattern of ByteLevel's use_regex */

/* ---- normalizers (tok_norm.c) ---- */

typedef enum tok_norm_kind {
    NORM_NFC, NORM_NFD, NORM_NFKC, NORM_NFKD, NORM_PREPEND, NORM_REPLACE, NORM_LOWERCASE,
    NORM_STRIP, NORM_STRIP_ACCENTS, NORM_BERT, NORM_PRECOMPILED, NORM_BYTE_LEVEL, NORM_NMT,
    NORM_SPM
} tok_norm_kind;

typedef struct tok_charsmap {
    const uint32_t *trie; /* [n_units] double array of the SentencePiece char map */
    size_t n_units;
    const char *out; /* replacement strings, NUL separated */
    size_t n_out;
} tok_charsmap;

typedef struct tok_norm {
    tok_norm_kind kind;
    tok_str pattern, content; /* REPLACE (literal pattern), PREPEND (content) */
    tok_regex re;             /* REPLACE with a regex when re.code is set */
    bool left, right;         /* STRIP */
    bool clean, chinese, strip_accents, lowercase; /* BERT */
    tok_charsmap map;         /* PRECOMPILED, SPM */
    bool prefix, suffix;      /* SPM: a space before or behind the text, ... */
    bool every_section;       /*   also of what follows an added token */
    bool remove_extra, escape; /* SPM: fewer spaces; as U+2581 */
} tok_norm;

/* ---- character maps (tok_charsmap.c) ---- */

/* Read a map of n bytes, copied to the arena. Errors: QN_FORMAT, QN_NOMEM. */
qn_code tok_charsmap_read(qn_tokenizer *t, const void *data, size_t n, tok_charsmap *map,
                          qn_err *err);
/* The same from "precompiled_charsmap" of a Precompiled normalizer. */
qn_code tok_charsmap_parse(qn_tokenizer *t, const json_t *o, tok_charsmap *map, qn_err *err);
/* Append the mapped text, as the Precompiled normalizer does. */
void tok_charsmap_run(const tok_charsmap *m, tok_str in, qn_buf *out);
/* What the longest known prefix of s[0..n) becomes; returns its length, 0 if there is none. */
size_t tok_charsmap_longest(const tok_charsmap *m, const char *s, size_t n, tok_str *out);
/* Append the bytes of base64 text; false if it is not. */
bool tok_base64(const char *s, size_t n, qn_buf *out);

/* ---- pre-tokenizers (pretok.c) ---- */

typedef enum tok_split_behavior {
    SPLIT_REMOVED, SPLIT_ISOLATED, SPLIT_MERGED_PREV, SPLIT_MERGED_NEXT, SPLIT_CONTIGUOUS
} tok_split_behavior;

typedef enum tok_pre_kind {
    PRE_SPLIT,      /* by re, scan, literal or char class */
    PRE_SCRIPTS,    /* where the script changes */
    PRE_FIXED,      /* every `length` characters */
    PRE_BYTE_LEVEL, /* prefix space; maps bytes to the alphabet unless `raw` */
    PRE_METASPACE
} tok_pre_kind;

typedef enum tok_prepend { PREPEND_NEVER, PREPEND_ALWAYS, PREPEND_FIRST } tok_prepend;

typedef struct tok_pre {
    tok_pre_kind kind;
    tok_split_behavior behavior;
    bool invert;
    tok_regex re;            /* PRE_SPLIT: one of these four says where the matches are */
    tok_scan_fn scan;        /*   pieces that cover the text, all of them kept */
    bool ends_word;          /*     as in tok_known_pattern */
    tok_str literal;
    bool (*is_match)(unsigned cp); /*   every such character is one match */
    bool add_prefix_space;   /* PRE_BYTE_LEVEL */
    bool raw;                /* PRE_BYTE_LEVEL: last stage, the model reads bytes */
    tok_str replacement;     /* PRE_METASPACE */
    tok_prepend prepend;
    bool split;
    uint32_t length;         /* PRE_FIXED */
} tok_pre;

/* ---- byte tries (tok_added.c) ---- */

typedef struct tok_trie_node {
    uint32_t child, sibling; /* node numbers, 0 none */
    uint32_t token;          /* what ends here: index + 1, 0 none */
    uint8_t byte;
} tok_trie_node;

typedef struct tok_trie {
    tok_trie_node *nodes; /* node 0 unused */
    uint32_t n, cap;
    uint32_t root[256];   /* first node for each first byte */
} tok_trie;

/* ---- models ---- */

typedef enum tok_model_kind {
    MODEL_BPE,
    MODEL_UNIGRAM,
    MODEL_WORDPIECE,
    MODEL_WORDLEVEL
} tok_model_kind;

typedef struct tok_model {
    tok_model_kind kind;
    tok_vocab vocab;
    const tok_merge *merges; /* BPE: [merge_mask + 1] open addressing */
    uint32_t merge_mask;
    bool ignore_merges, byte_fallback, fuse_unk;
    bool raw_bytes;          /* BPE: pieces are bytes, not alphabet characters */
    bool space_boundary;     /* BPE: few merges cross from other text into a space mark */
    uint32_t crossing[64];   /* the characters that such merges have before the mark */
    size_t n_crossing;
    tok_str unk_token, prefix, suffix; /* suffix: end of word */
    uint32_t unk;            /* QN_NO_TOKEN: none, or not in the vocabulary */
    uint32_t byte_id[256];   /* raw_bytes: id of each byte's character */
    uint32_t fallback[256];  /* id of <0xNN> */
    double unk_score;        /* Unigram */
    tok_trie trie;           /* Unigram: every token */
    bool spm;                /* read from a tokenizer.model: sums are floats */
    const uint8_t *hidden;   /* [n_ids] or NULL: nonzero for tokens that text never becomes */
    tok_trie user;           /* user-defined tokens of a tokenizer.model */
    uint32_t max_word_chars; /* WordPiece */
    size_t max_token;        /* bytes of the longest token */
} tok_model;

/* ---- added tokens (tok_added.c) ---- */

typedef struct tok_added {
    tok_str content;
    tok_str shown;           /* what decoding sees: normalised if the flag says so */
    uint32_t id;
    bool lstrip, rstrip, single_word, normalized, special;
} tok_added;

/* ---- post-processor and decoder ---- */

typedef struct tok_post_item {
    bool is_text; /* the sequence; else a special token */
    uint32_t id;
} tok_post_item;

typedef enum tok_dec_kind {
    DEC_BYTE_LEVEL,
    DEC_BYTE_FALLBACK,
    DEC_FUSE,
    DEC_REPLACE,
    DEC_STRIP,
    DEC_METASPACE,
    DEC_WORDPIECE,
    DEC_BPE_SUFFIX,
    DEC_CTC,
    DEC_JOIN
} tok_dec_kind;

typedef struct tok_dec {
    tok_dec_kind kind;
    tok_str pattern,
        content; /* REPLACE; STRIP, METASPACE, WORDPIECE prefix, BPE suffix use pattern; CTC: the
                    pad token and the word delimiter */
    tok_regex re;             /* REPLACE with a regex when re.code is set */
    uint32_t start, stop;     /* STRIP: characters at most */
    bool flag;                /* METASPACE: drop the first token's marks; WORDPIECE, CTC: cleanup */
    bool joined;              /* reads one long token in fragments: an earlier stage fused */
} tok_dec;

struct qn_tokenizer {
    qn_arena arena;
    json_t *config;
    tok_model model;
    tok_added *added;        /* [n_added], in file order */
    size_t n_added;
    uint32_t *added_of_id;   /* [n_vocab] index of the added token + 1, 0 none */
    tok_trie raw_trie, norm_trie;
    bool normalized_added;   /* norm_trie holds something */
    bool cuts;               /* tok_next_cut finds places */
    size_t max_added;        /* bytes of the longest added token */
    uint32_t n_vocab, bos, eos;
    tok_norm *norms;
    size_t n_norms;
    tok_pre *pres;
    size_t n_pres;
    tok_post_item post[TOK_MAX_POST];
    size_t n_post;
    tok_dec *decs;
    size_t n_decs;
    qn_map map;              /* the cache behind the vocabulary arrays; empty without one */
    void *owned[4];          /* malloc memory behind the vocabulary arrays */
    pthread_mutex_t lock;    /* guards the pool */
    tok_scratch *pool;
};

/* ---- scratch of one running encode ---- */

typedef struct tok_symbol {
    uint32_t id;
    int32_t prev, next; /* -1 none; a dead symbol has id QN_NO_TOKEN */
} tok_symbol;

typedef struct tok_candidate {
    uint64_t key; /* rank << 32 | position: lower first */
    uint32_t id;  /* what the merge makes */
} tok_candidate;

typedef struct tok_cache_slot {
    uint64_t key[2];  /* up to 15 bytes, the length in the last byte; 0 empty */
    uint32_t ids[4];  /* QN_NO_TOKEN after the last */
} tok_cache_slot;

enum { TOK_CACHE_SLOTS = 1 << 15 };

struct tok_scratch {
    tok_scratch *next;
    qn_buf norm[2];       /* normalizers go back and forth between these */
    qn_buf pre[2];        /* so do pre-tokenizers that change the text */
    qn_buf key;           /* small lookups */
    tok_pieces list[2];
    qn_ids text_ids;      /* ids of the whole text, for post-processors that use it twice */
    tok_symbol *symbols;
    size_t symbols_cap;
    tok_candidate *heap;
    size_t n_heap, heap_cap;
    void *lattice;        /* Unigram */
    size_t lattice_cap;
    pcre2_match_data *match;
    tok_cache_slot *cache; /* [TOK_CACHE_SLOTS] */
};

/* Take a scratch from the pool or make one; NULL without memory. Give it back with tok_scratch_put.
 */
tok_scratch *tok_scratch_take(const qn_tokenizer *t);
void tok_scratch_put(const qn_tokenizer *t, tok_scratch *sc);
void tok_scratch_free(tok_scratch *sc);

/* ---- parsing; every function names the field in its errors ---- */

/* A field of an object. Absent or null gives the default. Errors: QN_FORMAT for a wrong type. */
qn_code tok_json_bool(const json_t *o, const char *where, const char *key, bool dflt, bool *out,
                      qn_err *err);
qn_code tok_json_u32(const json_t *o, const char *where, const char *key, uint32_t dflt,
                     uint32_t *out, qn_err *err);
/* A string copied to the arena; absent or null gives s NULL. */
qn_code tok_json_str(qn_tokenizer *t, const json_t *o, const char *where, const char *key,
                     tok_str *out, qn_err *err);
/* The same, but it must be there. */
qn_code tok_json_need_str(qn_tokenizer *t, const json_t *o, const char *where, const char *key,
                          tok_str *out, qn_err *err);
/* "type" of a component, borrowed from the JSON. */
qn_code tok_json_type(const json_t *o, const char *where, const char **out, qn_err *err);
/* {"String": s} or {"Regex": s}: *regex says which; a bare string counts as String. */
qn_code tok_json_pattern(qn_tokenizer *t, const json_t *o, const char *where, tok_str *out,
                         bool *regex, qn_err *err);

qn_code tok_parse_model(qn_tokenizer *t, const json_t *model, qn_err *err);
qn_code tok_parse_bpe(qn_tokenizer *t, const json_t *model, qn_err *err);
qn_code tok_parse_unigram(qn_tokenizer *t, const json_t *model, qn_err *err);
qn_code tok_parse_added(qn_tokenizer *t, const json_t *list, qn_err *err);
qn_code tok_parse_norm(qn_tokenizer *t, const json_t *norm, qn_err *err);
qn_code tok_parse_pre(qn_tokenizer *t, const json_t *pre, qn_err *err);
qn_code tok_parse_post(qn_tokenizer *t, const json_t *post, qn_err *err);
qn_code tok_parse_dec(qn_tokenizer *t, const json_t *dec, qn_err *err);

/* After everything else is known: derived tables of the model. */
qn_code tok_bpe_prepare(qn_tokenizer *t, qn_err *err);

/* Build the vocabulary arrays from tokens given as (text, id). Errors: QN_LIMIT, QN_NOMEM. */
typedef struct tok_entry {
    tok_str token;
    uint32_t id;
} tok_entry;
qn_code tok_vocab_build(qn_tokenizer *t, const tok_entry *entries, size_t n, qn_err *err);

/* Fill the merges with every pair of tokens whose text together is a token. ranks: [n_ids] or NULL,
 * the id is the rank; no_part: [n_ids] or NULL, tokens that are no part of a pair. */
qn_code tok_bpe_merges_of_vocab(qn_tokenizer *t, const uint32_t *ranks, const bool *no_part,
                                qn_err *err);

/* ---- other files (tok_tiktoken.c, tok_spm.c) ---- */

/* Fill the model from the file's bytes; *root gets what a tokenizer.json would say about the rest.
 * t->config is read. Errors: QN_FORMAT, QN_UNSUPPORTED, QN_LIMIT, QN_NOMEM. */
qn_code tok_tiktoken_read(qn_tokenizer *t, const void *data, size_t n, json_t **root, qn_err *err);
qn_code tok_spm_read(qn_tokenizer *t, const void *data, size_t n, json_t **root, qn_err *err);
/* SentencePiece's own normalizer: NORM_SPM. */
void tok_spm_normalize(const qn_tokenizer *t, const tok_norm *n, tok_str in, bool origin,
                       qn_buf *out);

/* ---- the mapped cache (tok_cache.c) ---- */

/* The name of a tokenizer.json: its content's hash. */
void tok_cache_key(const char *json, size_t n, uint64_t key[2]);
/* Use the cache of `key`: fills the vocabulary and merges, and *rest with the remaining JSON. False
 * if there is none that holds. */
bool tok_cache_open(qn_tokenizer *t, const uint64_t key[2], tok_str *rest);
/* Write the cache of a parsed tokenizer; failure is silent. */
void tok_cache_save(const qn_tokenizer *t, const json_t *root, const uint64_t key[2]);
/* The same on bytes in memory, 16-byte aligned. Everything is checked before it is used. */
bool tok_cache_read(qn_tokenizer *t, const void *data, size_t n, const uint64_t key[2],
                    tok_str *rest);
/* XXH64 of a whole cache file of n >= 96 bytes, its hash field taken as 0. */
uint64_t tok_cache_hash(const void *data, size_t n);
void tok_cache_write(const qn_tokenizer *t, const char *rest, size_t n_rest, const uint64_t key[2],
                     qn_buf *out);

/* ---- running ---- */

/* A place in the text from which encoding can go on: what is before it gave the first n_ids ids. */
typedef struct tok_mark {
    size_t at, n_ids;
} tok_mark;

typedef struct tok_marks {
    tok_mark *v;
    size_t n, cap;
} tok_marks;

/* Invalid UTF-8 becomes U+FFFD, written to `clean`; *text and *n then point there. Errors:
 * QN_LIMIT, QN_NOMEM. */
qn_code tok_clean(const char **text, size_t *n, qn_buf *clean, qn_err *err);
/* Encode well-formed text from offset `from`, which is 0 or the last of `marks`, appending to out,
 * which holds the ids of what is before; notes the marks that it passes (NULL: none wanted).
 * Errors: as qn_tokenizer_encode. */
qn_code tok_encode_from(const qn_tokenizer *t, tok_str text, size_t from, unsigned flags,
                        qn_ids *out, tok_marks *marks, qn_err *err);

/* Find out whether cuts are possible, once everything else is known (tok_cut.c). */
void tok_cut_prepare(qn_tokenizer *t);
/* The first safe cut of s at least `least` bytes behind `from`; s.n if there is none. */
size_t tok_next_cut(const qn_tokenizer *t, tok_str s, size_t from, size_t least);

/* Normalise s[0..n). The result is valid until the next call on sc: the input itself where nothing
 * changed, else one of sc->norm. *origin becomes false when the start of the text is stripped.
 * Errors: QN_NOMEM, QN_LIMIT. */
qn_code tok_norm_run(const qn_tokenizer *t, tok_scratch *sc, tok_str in, tok_str *out, bool *origin,
                     qn_err *err);

/* Split `in` into pieces. *text is what the pieces point into, *list one of sc->list. */
qn_code tok_pre_run(const qn_tokenizer *t, tok_scratch *sc, tok_str in, bool origin, tok_str *text,
                    tok_pieces **list, qn_err *err);
void tok_pieces_put(tok_pieces *l, size_t at, size_t len, bool origin);

/* Append the ids of one piece. */
qn_code tok_bpe_encode(const qn_tokenizer *t, tok_scratch *sc, tok_str piece, qn_ids *out,
                       qn_err *err);
qn_code tok_wordpiece_encode(const qn_tokenizer *t, tok_scratch *sc, tok_str piece, qn_ids *out,
                             qn_err *err);
qn_code tok_wordlevel_encode(const qn_tokenizer *t, tok_str piece, qn_ids *out, qn_err *err);
qn_code tok_unigram_encode(const qn_tokenizer *t, tok_scratch *sc, tok_str piece, qn_ids *out,
                           qn_err *err);

/* Index the added tokens for matching, once the normalizers are known. */
qn_code tok_added_index(qn_tokenizer *t, qn_err *err);

/* Add a byte string; its first index stays. False without memory. */
bool tok_trie_add(qn_arena *arena, tok_trie *trie, tok_str s, uint32_t index);
/* The node for `byte` in the sibling list that starts at `first`, or 0. */
uint32_t tok_trie_step(const tok_trie *trie, uint32_t first, uint8_t byte);

/* The length of the longest string of the trie that s starts with, 0 if none; *index gets its
 * index. */
size_t tok_trie_longest(const tok_trie *trie, tok_str s, uint32_t *index);

/* The longest added token at the leftmost position at or after `from`; NULL if none. */
const tok_added *tok_trie_next(const tok_trie *trie, const qn_tokenizer *t, tok_str text,
                               size_t from, size_t *start, size_t *end);

/* ---- decoding as a stream; batch decoding pushes everything and finishes ---- */

typedef struct tok_dec_state {
    qn_buf hold;    /* bytes that wait for what follows */
    uint32_t count; /* tokens or characters seen, by stage */
} tok_dec_state;

typedef struct tok_dec_run {
    const qn_tokenizer *t;
    tok_dec_state *states; /* [t->n_decs] */
    qn_buf tmp;            /* one token's bytes */
    qn_buf *out;
} tok_dec_run;

qn_code tok_dec_init(tok_dec_run *r, const qn_tokenizer *t, qn_err *err);
void tok_dec_push(tok_dec_run *r, tok_str token);
void tok_dec_finish(tok_dec_run *r);
void tok_dec_reset(tok_dec_run *r);
void tok_dec_release(tok_dec_run *r);

#endif
